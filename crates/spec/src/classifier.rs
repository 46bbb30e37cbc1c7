//! A drive's classifier as a user describes it.

use super::Fault;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// Maximum length of a section's name, in letters.
const SECTION_MAX: usize = 64;

/// The program that decides where each command of a drive goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassifierSpec {
    /// Object file of an eBPF program, as `clang -target bpf` makes it.
    #[schema(value_type = String)]
    pub object: PathBuf,
    /// Section of the object that contains the program.
    #[serde(default = "default_section")]
    pub section: String,
    /// Number of errors after which the program is detached from a namespace; never if not given. Commands of
    /// that namespace then take the first path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors_max: Option<u64>,
    /// Whether the program reads the machine's clock as it is, instead of in steps of 4 ms.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub precise_clock: bool,
}

/// Returns the section that is used unless another is named.
pub fn default_section() -> String {
    sluice_classifier::SECTION.to_owned()
}

impl ClassifierSpec {
    /// Returns the clock of the program.
    pub fn clock(&self) -> sluice_classifier::Clock {
        if self.precise_clock { sluice_classifier::Clock::Precise } else { sluice_classifier::Clock::Coarse }
    }

    pub fn check(&self) -> Result<(), Fault> {
        if !self.object.is_absolute() {
            let words = format!("{} is not an absolute path", self.object.display());
            return Err(Fault::at_key("object", words)
                .hint("the daemon has another working directory than you: start the path with /"));
        }
        if self.section.is_empty() || self.section.len() > SECTION_MAX {
            let words = format!("the name of a section has 1 to {SECTION_MAX} letters");
            return Err(Fault::at_key("section", words).hint("use what SEC(\"...\") says in the program"));
        }
        if self.errors_max == Some(0) {
            return Err(Fault::at_key("errors_max", "zero would detach a program that did nothing wrong")
                .hint("use 1 or more, or leave it out"));
        }
        Ok(())
    }
}
