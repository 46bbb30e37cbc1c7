//! Reads of a mirror: they go to a member that has what they are about, and to the next one if that fails.

use super::{READ, Replicate};
use sluice_nvme::Status;
use sluice_uif::{Answer, Call, Io};

/// In a read's cookie, beside the members that were asked: one of them was to be asked twice.
const AGAIN: u64 = 1 << 63;

impl Replicate {
    /// To the first member, in the order of their numbers, that has these bytes and was not asked yet: the
    /// cookie knows who was, and who is.
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
            // What the last one said.
            None => Answer::Finish(of_host(call.status)),
        }
    }

    /// What the answer of a member to a write is to the host. One that says that it has lost writes is lost.
    pub(super) fn note_loss(&mut self, member: usize, status: Status) -> Status {
        if status.same_code(Status::WRITES_LOST) {
            self.set.iter_mut().for_each(|set| set.mirror.has_lost_writes(member));
        }
        of_host(status)
    }

    /// A member has answered. One that cannot be read is lost, if there is another.
    pub(super) fn was_read(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if call.status.is_success() || call.status.is_of_host() {
            return Answer::Finish(call.status);
        }
        let member = call.cookie[1] as usize;
        match &mut self.set {
            // It was not read. If no other member has what it has left, it is asked once more.
            Some(set) if call.status.same_code(Status::WRITES_LOST) && call.cookie[0] & AGAIN == 0 => {
                set.mirror.has_lost_writes(member);
                call.cookie[0] = call.cookie[0] & !(1 << member) | AGAIN;
            }
            Some(set) => set.mirror.lose(member),
            None => {}
        }
        let answer = self.read(call);
        self.run(io);
        answer
    }
}

/// What a host is told instead of what layers tell each other.
fn of_host(status: Status) -> Status {
    if status.same_code(Status::WRITES_LOST) { Status::WRITE_FAULT } else { status }
}
