//! Between the types that functions see and those of the ring.

use crate::abi::{Reply, Submission, disposition, flag, operation};
use crate::{Answer, Call};
use sluice_command::{Operation, Request};
use sluice_nvme::Status;

pub(crate) const fn operation_code(of: Operation) -> u8 {
    match of {
        Operation::Read => operation::READ,
        Operation::Write => operation::WRITE,
        Operation::Flush => operation::FLUSH,
        Operation::WriteZeroes => operation::WRITE_ZEROES,
        Operation::Deallocate => operation::DEALLOCATE,
    }
}

fn operation_of(code: u8) -> Option<Operation> {
    Some(match code {
        operation::READ => Operation::Read,
        operation::WRITE => Operation::Write,
        operation::FLUSH => Operation::Flush,
        operation::WRITE_ZEROES => Operation::WriteZeroes,
        operation::DEALLOCATE => Operation::Deallocate,
        _ => return None,
    })
}

fn flags(request: &Request) -> u8 {
    (u8::from(request.fua) * flag::FUA) | (u8::from(request.deallocate) * flag::DEALLOCATE)
}

fn request(code: u8, flags: u8, offset: u64, length: u64) -> Option<Request> {
    let (fua, deallocate) = (flags & flag::FUA != 0, flags & flag::DEALLOCATE != 0);
    Some(Request { operation: operation_of(code)?, fua, deallocate, offset, length })
}

impl Submission {
    /// An entry about this request; the caller fills in the rest.
    pub fn about(asked: &Request) -> Self {
        Self {
            operation: operation_code(asked.operation),
            flags: flags(asked),
            offset: asked.offset,
            length: asked.length,
            ..Self::default()
        }
    }

    /// What a function sees of it; none if it knows no such operation.
    pub fn call<'a>(&self, data: &'a mut [u8]) -> Option<Call<'a>> {
        Some(Call {
            request: request(self.operation, self.flags, self.offset, self.length)?,
            data,
            status: Status(self.status),
            stage: self.stage,
            cookie: self.cookie,
            layer: 0,
            tag: self.tag,
        })
    }

    /// The same, with what a function changed of it.
    pub(crate) fn as_left(&self, call: &Call<'_>) -> Self {
        Self {
            tag: self.tag,
            data_offset: self.data_offset,
            data_length: self.data_length,
            cookie: call.cookie,
            ..Self::about(&call.request)
        }
    }
}

impl Reply {
    /// What a function says of the command with this tag.
    pub fn of(tag: u64, call: &Call<'_>, answer: Answer) -> Self {
        let (disposition, stage, status) = match answer {
            Answer::Finish(status) => (disposition::FINISH, 0, status),
            Answer::Forward => (disposition::FORWARD, 0, Status::SUCCESS),
            Answer::ForwardAndReturn(stage) => (disposition::FORWARD_AND_RETURN, stage, Status::SUCCESS),
            // To hold is to say nothing.
            Answer::Hold => (disposition::FINISH, 0, Status::INTERNAL_ERROR),
        };
        let (layer, status, cookie) = (call.layer, status.0, call.cookie);
        Self { disposition, stage, status, layer, cookie, ..Self::default() }.about(tag, &call.request)
    }

    /// That this command is finished.
    pub(crate) fn finished(entry: &Submission, status: Status) -> Self {
        let (tag, operation, flags) = (entry.tag, entry.operation, entry.flags);
        let (offset, length, status) = (entry.offset, entry.length, status.0);
        Self { tag, operation, flags, offset, length, status, ..Self::default() }
    }

    /// The same, with this tag and request.
    pub(crate) fn about(self, tag: u64, asked: &Request) -> Self {
        let (operation, flags) = (operation_code(asked.operation), flags(asked));
        Self { tag, operation, flags, offset: asked.offset, length: asked.length, ..self }
    }

    /// What it wants sent below; none if that makes no sense.
    pub fn request(&self) -> Option<Request> {
        request(self.operation, self.flags, self.offset, self.length)
    }

    /// A status has 15 bits (Base 3.3.3.2); bit 15 would become somebody's phase.
    pub fn status(&self) -> Status {
        Status(self.status & 0x7fff)
    }

    /// What it says, and the request that it wants sent below; none if that makes no sense.
    pub fn answer(&self) -> Option<(Answer, Request)> {
        let sent = self.request()?;
        let answer = match self.disposition {
            disposition::FINISH => Answer::Finish(self.status()),
            disposition::FORWARD => Answer::Forward,
            disposition::FORWARD_AND_RETURN => Answer::ForwardAndReturn(self.stage),
            _ => return None,
        };
        Some((answer, sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Request> {
        let operations = prop::sample::select(vec![
            Operation::Read,
            Operation::Write,
            Operation::Flush,
            Operation::WriteZeroes,
            Operation::Deallocate,
        ]);
        (operations, any::<bool>(), any::<bool>(), any::<u64>(), any::<u64>()).prop_map(
            |(operation, fua, deallocate, offset, length)| Request {
                operation,
                fua,
                deallocate,
                offset,
                length,
            },
        )
    }

    proptest! {
        #[test]
        fn a_request_survives_the_way_there_and_back(asked in requests(), tag: u64, stage: u8, cookie: [u64; 2]) {
            let mut data = [0; 4];
            let entry = Submission { stage, cookie, ..Submission::about(&asked) };
            let call = entry.call(&mut data).expect("a known operation");
            prop_assert_eq!((call.request, call.stage, call.cookie), (asked, stage, cookie));
            for answer in [Answer::Finish(Status::WRITE_FAULT), Answer::Forward, Answer::ForwardAndReturn(stage)] {
                let reply = Reply::of(tag, &call, answer);
                prop_assert_eq!(reply.answer(), Some((answer, asked)));
                prop_assert_eq!((reply.tag, reply.cookie), (tag, cookie));
            }
        }

        #[test]
        fn no_bytes_are_too_strange(words: [u64; 8]) {
            use crate::ring::Entry;
            if let Some((Answer::Finish(status), _)) = Reply::from_words(words).answer() {
                prop_assert!(status.0 < 1 << 15);
            }
            let _ = Submission::from_words(words).call(&mut []);
        }
    }
}
