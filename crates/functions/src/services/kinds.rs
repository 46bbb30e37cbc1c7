//! Functions that come with Sluice.

use crate::{Encrypt, Replicate, snapshot};
use sluice_command::Operation;
use sluice_crypt::Given;
use sluice_uif::{Answer, Call, Function, Interest, Io, Options, Properties};

/// Names of the functions, as a user writes them.
pub const KINDS: [&str; 5] = ["pass", "encrypt", "replicate", "mirror", "snapshot"];

/// Orders for a function that is attached to a drive in use, or detached from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Order at an attach for a function that needs to be given the right layer: the drive is right.
    pub asked: Option<&'static str>,
    /// Order at an attach, before the function gets a command.
    pub attached: Option<&'static str>,
    /// Order before a detach: the function misses later writes.
    pub detached: Option<&'static str>,
    /// Reason why the function can be neither attached nor detached.
    pub stays: Option<&'static str>,
}

/// Returns the orders of one of [`KINDS`].
pub fn changes(kind: &str) -> Changes {
    match kind {
        // The log covers only writes that passed the function. Both orders are there so that no crash comes
        // between.
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

/// Makes one of [`KINDS`]. `given` holds the contents of the descriptors that its process was started with.
///
/// # Errors
/// There is no such function, or its options are not valid.
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

/// Function that sees every command and forwards it: the cost of a function without work.
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
