//! The functions that come with Sluice.

use crate::{Encrypt, Replicate, snapshot};
use sluice_command::Operation;
use sluice_crypt::Given;
use sluice_uif::{Answer, Call, Function, Interest, Io, Options, Properties};

/// Their names, as a user writes them.
pub const KINDS: [&str; 5] = ["pass", "encrypt", "replicate", "mirror", "snapshot"];

/// Orders for a function whose place in a drive changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// When it is attached to a drive in use and asks which of its layers is right: the drive is.
    pub asked: Option<&'static str>,
    /// When it is attached to a drive in use, before it gets a command.
    pub attached: Option<&'static str>,
    /// Before it is detached, and misses what is written.
    pub detached: Option<&'static str>,
    /// Why it is neither attached nor detached.
    pub stays: Option<&'static str>,
}

/// Those of one of [`KINDS`].
pub fn changes(kind: &str) -> Changes {
    match kind {
        // Its log speaks of the writes that it saw. Both, so that no crash comes between.
        "replicate" => Changes {
            asked: Some("copy from 0"),
            attached: Some("resync all"),
            detached: Some("fail"),
            stays: None,
        },
        "mirror" => Changes {
            stays: Some("the host may be reading another of its members than what it stands on"),
            ..Changes::default()
        },
        _ => Changes::default(),
    }
}

/// Makes one of [`KINDS`]. `given` is what the descriptors held that its process was started with.
///
/// # Errors
/// In words for the user: there is no such function, or its options are not right.
pub fn make(kind: &str, options: &Options, given: &Given) -> Result<Box<dyn Function>, String> {
    match kind {
        "pass" => match options.unknown_key(&[]) {
            None => Ok(Box::new(Pass)),
            Some(unknown) => Err(format!("pass has no options, and so no `{unknown}`")),
        },
        "snapshot" => snapshot::make(options),
        "encrypt" => Ok(Box::new(Encrypt::new(options, given)?)),
        "replicate" => Ok(Box::new(Replicate::new(options)?)),
        "mirror" => Ok(Box::new(Replicate::mirror(options)?)),
        other => Err(format!("there is no function `{other}`; there are {}", KINDS.join(", "))),
    }
}

/// Sees every command and lets it by: what a function costs that does nothing.
#[derive(Debug)]
struct Pass;

impl Function for Pass {
    fn properties(&self) -> Properties {
        let all = [
            Operation::Read,
            Operation::Write,
            Operation::Flush,
            Operation::WriteZeroes,
            Operation::Deallocate,
        ];
        all.into_iter()
            .fold(Properties::NONE, |properties, operation| properties.with(operation, Interest::Before))
    }

    fn submit(&mut self, _call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        Answer::Forward
    }
}
