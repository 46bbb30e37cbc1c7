//! Conversion between the types of functions and those of the ring.

use crate::abi::{Reply, Submission, disposition, flag, operation, translation};
use crate::{Answer, Effect, Held, Passage, Translation};
use sluice_command::{Operation, Request};
use sluice_nvme::Status;

/// Operations at the index of their code.
const OPERATIONS: [Operation; operation::COUNT] =
    [Operation::Read, Operation::Write, Operation::Flush, Operation::WriteZeroes, Operation::Deallocate];

/// Returns the operation and the flags of a request for an entry.
pub fn codes(of: &Request) -> (u8, u8) {
    let flags = (u8::from(of.fua) * flag::FUA) | (u8::from(of.deallocate) * flag::DEALLOCATE);
    (of.operation as u8, flags)
}

/// Returns the request of an entry; none if there is no such operation.
pub fn request(operation: u8, flags: u8, offset: u64, length: u64) -> Option<Request> {
    let operation = *OPERATIONS.get(usize::from(operation))?;
    let (fua, deallocate) = (flags & flag::FUA != 0, flags & flag::DEALLOCATE != 0);
    Some(Request { operation, fua, deallocate, offset, length })
}

impl Submission {
    /// Returns the entry's command, with this handle; none if there is no such operation.
    pub(crate) fn passage(&self, held: Held) -> Option<Passage> {
        let request = request(self.operation, self.flags, self.offset, self.length)?;
        let Self { stage, cookie, data_offset, data_length, .. } = *self;
        let status = Status(self.status);
        Some(Passage { held, request, layer: 0, stage, status, cookie, data_offset, data_length })
    }
}

impl Reply {
    /// Returns a reply that sends this request below.
    pub(crate) fn about(tag: u64, asked: &Request) -> Self {
        let (operation, flags) = codes(asked);
        Self { tag, operation, flags, offset: asked.offset, length: asked.length, ..Self::default() }
    }

    /// Returns a reply that finishes a command.
    pub(crate) fn finished(entry: &Submission, status: Status) -> Self {
        let Submission { tag, operation, flags, offset, length, .. } = *entry;
        Self { tag, operation, flags, offset, length, status: status.0, ..Self::default() }
    }

    /// Returns the reply of a function's answer to the command with this tag; none if the function holds the
    /// command.
    pub(crate) fn answer(tag: u64, passage: &Passage, answer: Answer) -> Option<Self> {
        let (disposition, stage, status) = match answer {
            Answer::Hold => return None,
            Answer::Finish(status) => (disposition::FINISH, 0, status.0),
            Answer::Forward => (disposition::FORWARD, 0, 0),
            Answer::ForwardAndReturn(stage) => (disposition::FORWARD_AND_RETURN, stage, 0),
        };
        let Passage { layer, cookie, ref request, .. } = *passage;
        Some(Self { disposition, stage, status, layer, cookie, ..Self::about(tag, request) })
    }

    /// Returns the entry of another action.
    pub(crate) fn effect(effect: Effect) -> Self {
        match effect {
            Effect::Request { tag, layer, request, data_offset } => {
                let disposition = disposition::REQUEST;
                Self { disposition, layer, data_offset, ..Self::about(tag, &request) }
            }
            Effect::Ready(Status(status)) => {
                Self { disposition: disposition::READY, status, ..Self::default() }
            }
            Effect::Translate(update) => Self::translation(update),
        }
    }

    fn translation(update: Translation) -> Self {
        let (disposition, mut cookie) = (disposition::TRANSLATE, [0; 2]);
        let (operation, offset, length) = match update {
            Translation::Insert { from, length, to, writable } => {
                cookie = [to, writable.into()];
                (translation::INSERT, from, length)
            }
            Translation::Forget { from, length } => (translation::FORGET, from, length),
            Translation::Protect { from, length } => (translation::PROTECT, from, length),
        };
        Self { disposition, operation, offset, length, cookie, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_operation_has_the_code_of_the_abi() {
        let codes = OPERATIONS.map(|operation| codes(&Request { operation, ..Request::default() }).0);
        use operation::{DEALLOCATE, FLUSH, READ, WRITE, WRITE_ZEROES};
        assert_eq!(codes, [READ, WRITE, FLUSH, WRITE_ZEROES, DEALLOCATE]);
        assert_eq!(codes, [0, 1, 2, 3, 4]);
    }

    fn requests() -> impl Strategy<Value = Request> {
        let operations = prop::sample::select(&OPERATIONS[..]);
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
            let (operation, flags) = codes(&asked);
            let (offset, length) = (asked.offset, asked.length);
            let entry = Submission { tag, stage, operation, flags, offset, length, cookie, ..Submission::default() };
            let passage = entry.passage(Held::new(1, 2)).expect("a known operation");
            prop_assert_eq!((passage.request, passage.stage, passage.cookie), (asked, stage, cookie));
            let reply = Reply::answer(tag, &passage, Answer::ForwardAndReturn(stage)).expect("it is not held");
            prop_assert_eq!(request(reply.operation, reply.flags, reply.offset, reply.length), Some(asked));
            prop_assert_eq!((reply.tag, reply.stage, reply.cookie), (tag, stage, cookie));
            prop_assert_eq!(Reply::answer(tag, &passage, Answer::Hold), None);
        }

        #[test]
        fn no_bytes_are_too_strange(words: [u64; 8]) {
            let entry: Submission = zerocopy::transmute!(words);
            prop_assert_eq!(entry.passage(Held::new(0, 0)).is_some(), entry.operation < 5);
        }
    }
}
