//! Conversion between requests and the entries of a ring, on the daemon's side.

use sluice_command::Request;
use sluice_nvme::Status;
use sluice_uif::abi::{Reply, Submission, disposition};
use sluice_uif::{Answer, wire};

/// Returns an entry with this request; the caller fills in the rest.
pub fn about(asked: &Request) -> Submission {
    let (operation, flags) = wire::codes(asked);
    Submission { operation, flags, offset: asked.offset, length: asked.length, ..Submission::default() }
}

/// Returns the request of a reply for the layers below; none if it is malformed.
pub fn request(reply: &Reply) -> Option<Request> {
    wire::request(reply.operation, reply.flags, reply.offset, reply.length)
}

/// Returns the status of a reply.
pub(super) fn status(reply: &Reply) -> Status {
    valid(Status(reply.status))
}

/// Returns the bits of a function's status that are a status. It has 15 bits (Base 3.3.3.2); bit 15 would
/// become the phase of an entry.
pub(super) fn valid(status: Status) -> Status {
    Status(status.0 & 0x7fff)
}

/// Returns a reply's answer to a command, and the request for the layers below; none if it is malformed.
pub fn answer(reply: &Reply) -> Option<(Answer, Request)> {
    let sent = request(reply)?;
    let answer = match reply.disposition {
        disposition::FINISH => Answer::Finish(status(reply)),
        disposition::FORWARD => Answer::Forward,
        disposition::FORWARD_AND_RETURN => Answer::ForwardAndReturn(reply.stage),
        _ => return None,
    };
    Some((answer, sent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_command::Operation;

    fn reply(asked: &Request) -> Reply {
        let Submission { operation, flags, offset, length, .. } = about(asked);
        Reply { operation, flags, offset, length, ..Reply::default() }
    }

    proptest! {
        #[test]
        fn a_request_survives_the_way_there_and_back(
            fua: bool, deallocate: bool, offset: u64, length: u64, stage: u8,
        ) {
            let asked = Request { operation: Operation::WriteZeroes, fua, deallocate, offset, length };
            let finished = Answer::Finish(Status::WRITE_FAULT);
            let answers = [finished, Answer::Forward, Answer::ForwardAndReturn(stage)];
            for (disposition, expected) in (0..).zip(answers) {
                let status = Status::WRITE_FAULT.0;
                let reply = Reply { disposition, stage, status, ..reply(&asked) };
                prop_assert_eq!(answer(&reply), Some((expected, asked)));
            }
        }

        #[test]
        fn no_bytes_are_too_strange(words: [u64; 8]) {
            if let Some((Answer::Finish(status), _)) = answer(&zerocopy::transmute!(words)) {
                prop_assert!(status.0 < 1 << 15);
            }
        }
    }
}
