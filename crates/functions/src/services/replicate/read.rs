//! Reads of a mirror: a member that has the data is read, and after an error the next one.

use super::{READ, Replicate};
use sluice_nvme::Status;
use sluice_uif::{Answer, Call, Io};

/// Bit of a read's cookie, beside the members that were read: a member is to be read twice.
const AGAIN: u64 = 1 << 63;

impl Replicate {
    /// Reads the first member, in the order of their numbers, that has these bytes and was not read yet. The
    /// cookie holds the members that were read, and the present one.
    pub(super) fn read(&self, call: &mut Call<'_>) -> Answer {
        let Some(set) = &self.set else { return Answer::Finish(Status::NAMESPACE_NOT_READY) };
        let readers = set.mirror.readers(&(call.request.offset..call.request.end()));
        let asked = call.cookie[0];
        match readers.iter().find(|member| asked >> member & 1 == 0) {
            Some(member) => {
                call.cookie = [asked | 1 << member, member as u64];
                call.layer = member as u8;
                Answer::ForwardAndReturn(READ)
            }
            None if asked == 0 => Answer::Finish(Status::INTERNAL_ERROR),
            // Status of the last member.
            None => Answer::Finish(of_host(call.status)),
        }
    }

    /// Returns whether this member has the bytes of a read now.
    fn is_current(&self, member: usize, call: &Call<'_>) -> bool {
        let bytes = call.request.offset..call.request.end();
        self.set.as_ref().is_none_or(|set| set.mirror.readers(&bytes).contains(member))
    }

    /// Returns the status for the host of a member's answer to a write. A member that reports lost writes is
    /// noted in the set.
    pub(super) fn note_loss(&mut self, member: usize, status: Status) -> Status {
        if status.same_code(Status::WRITES_LOST) {
            self.set.iter_mut().for_each(|set| set.mirror.has_lost_writes(member));
        }
        of_host(status)
    }

    /// Takes a read back. A member that cannot be read is lost, if there is another. Data of a member that was lost
    /// meanwhile is not returned: another member is read.
    pub(super) fn was_read(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let member = call.cookie[1] as usize;
        if call.status.is_success() && !self.is_current(member, call) {
            call.cookie[0] &= AGAIN;
            return self.read(call);
        }
        if call.status.is_success() || call.status.is_of_host() {
            return Answer::Finish(call.status);
        }
        match &mut self.set {
            // The member could not be read. If no other member has its data, it is read once more.
            Some(set) if call.status.same_code(Status::WRITES_LOST) && call.cookie[0] & AGAIN == 0 => {
                set.mirror.has_lost_writes(member);
                call.cookie[0] = call.cookie[0] & !(1 << member) | AGAIN;
            }
            // A place that cannot be read is written again. The member has the rest.
            Some(set) if call.status.same_code(Status::UNRECOVERED_READ_ERROR) => {
                let bytes = call.request.offset..call.request.end();
                if !set.mirror.is_unreadable(member, &bytes) {
                    set.mirror.lose(member);
                }
            }
            Some(set) => set.mirror.lose(member),
            None => {}
        }
        let answer = self.read(call);
        self.run(io);
        answer
    }
}

/// Returns the status for the host in place of a status that only layers use.
fn of_host(status: Status) -> Status {
    if status.same_code(Status::WRITES_LOST) { Status::WRITE_FAULT } else { status }
}
