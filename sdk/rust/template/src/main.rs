//! guard: nobody writes to the beginning of a drive, where partition table and boot loader are.

use sluice_uif::{Answer, Call, Function, Interest, Io, Operation, Options, Properties, Status};
use std::process::ExitCode;

struct Guard {
    /// Bytes that are protected.
    bytes: u64,
    refused: u64,
}

impl Guard {
    fn open(options: &Options) -> Result<Box<dyn Function>, String> {
        let bytes = options.get("bytes").unwrap_or("1048576");
        let bytes = bytes.parse().map_err(|_| format!("bytes is a number, not {bytes}"))?;
        Ok(Box::new(Guard { bytes, refused: 0 }))
    }
}

impl Function for Guard {
    fn properties(&self) -> Properties {
        Properties::NONE
            .with(Operation::Write, Interest::Before)
            .with(Operation::WriteZeroes, Interest::Before)
            .with(Operation::Deallocate, Interest::Before)
    }

    fn submit(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        if call.request.offset >= self.bytes {
            return Answer::Forward;
        }
        self.refused += 1;
        Answer::Finish(Status::NAMESPACE_WRITE_PROTECTED)
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        count("refused_total", self.refused);
    }
}

fn main() -> ExitCode {
    sluice_uif::main(&mut |options| Guard::open(options))
}
