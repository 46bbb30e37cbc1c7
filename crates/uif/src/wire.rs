//! Conversion between the types of functions and those of the ring.

use crate::Call;
use crate::abi::{Reply, Submission, flag, operation};
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
    /// Returns the function's view of the entry; none if there is no such operation.
    pub(crate) fn call<'a>(&self, data: &'a mut [u8]) -> Option<Call<'a>> {
        let request = request(self.operation, self.flags, self.offset, self.length)?;
        let (tag, stage, cookie, status) = (self.tag, self.stage, self.cookie, Status(self.status));
        Some(Call { request, layer: 0, data, status, stage, cookie, tag })
    }

    /// Returns the entry with the changes of the function.
    pub(crate) fn as_left(&self, call: &Call<'_>) -> Self {
        let (operation, flags) = codes(&call.request);
        let Request { offset, length, .. } = call.request;
        Self { operation, flags, offset, length, cookie: call.cookie, ..*self }
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
            let (mut data, (operation, flags)) = ([0; 4], codes(&asked));
            let (offset, length) = (asked.offset, asked.length);
            let entry = Submission { tag, stage, operation, flags, offset, length, cookie, ..Submission::default() };
            let call = entry.call(&mut data).expect("a known operation");
            prop_assert_eq!((call.request, call.stage, call.cookie), (asked, stage, cookie));
            prop_assert_eq!(entry.as_left(&call), entry);
            let reply = Reply::about(tag, &call.request);
            prop_assert_eq!(request(reply.operation, reply.flags, reply.offset, reply.length), Some(asked));
            prop_assert_eq!(reply.tag, tag);
        }

        #[test]
        fn no_bytes_are_too_strange(words: [u64; 8]) {
            let entry: Submission = zerocopy::transmute!(words);
            prop_assert_eq!(entry.call(&mut []).is_some(), entry.operation < 5);
        }
    }
}
