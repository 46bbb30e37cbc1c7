//! A drive's classifier as a user describes it.

use super::Fault;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// Letters of a section's name.
const SECTION_MAX: usize = 64;

/// The program that decides where each command of a drive goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassifierSpec {
    /// Object file of an eBPF program, as `clang -target bpf` makes it.
    #[schema(value_type = String)]
    pub object: PathBuf,
    /// The section of the object that the program is in.
    #[serde(default = "default_section")]
    pub section: String,
    /// Errors after which the program is detached from a namespace, whose commands then take the first
    /// path unasked. Never if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors_max: Option<u64>,
}

/// Where a program is unless another section is named.
pub fn default_section() -> String {
    sluice_classifier::SECTION.to_owned()
}

impl ClassifierSpec {
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
