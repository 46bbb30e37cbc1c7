//! Flushes of hosts, and the consequences of any flush that fails.

use super::{BACK, drive::Snapshot};
use sluice_nvme::Status;
use sluice_uif::{Answer, Call, Io};

/// Stage of a flush that comes back from its wait for the log.
const REPAIRED: u8 = BACK - 1;

impl Snapshot {
    /// Flushes data and metadata together, as long as the log can be written.
    pub(super) fn flush(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if self.work.as_ref().is_some_and(|work| !work.writer.is_stale()) {
            return Answer::ForwardAndReturn(self.back);
        }
        self.repair = true;
        self.flushes.push(call.hold());
        self.start_next_op(io);
        Answer::Hold
    }

    /// Continues the flushes that waited for the log to be repaired, or fails them.
    pub(super) fn repaired(&mut self, status: Status, io: &mut Io<'_>) {
        std::mem::take(&mut self.flushes).into_iter().for_each(|held| io.resume(held, REPAIRED, status));
    }

    /// Handles a flush that is back.
    pub(super) fn flushed(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let good = call.status.is_success();
        match call.stage {
            REPAIRED if good && self.work.is_some() => return self.flush(call, io),
            // A flush does not cover writes that were acknowledged after it arrived: the next one fails for
            // them.
            BACK.. if good && (call.stage != self.back || std::mem::take(&mut self.unflushed)) => {
                call.status = Status::WRITE_FAULT;
            }
            // A flush that its host aborted is no error of the store.
            BACK.. if !good && !call.status.is_of_host() => {
                // Flushes of the metadata operation may come after this one, and do not cover the writes
                // before it.
                self.spoiled = self.op.is_some();
                self.flush_was_lost(io);
                self.go_on(io);
            }
            _ => {}
        }
        Answer::Finish(call.status)
    }

    /// Handles a failed flush. The data that it was to make durable may be lost, and no later flush brings it
    /// back. Such data belongs to the log, where later records would be meaningless without it, and to copies
    /// that are not completed yet.
    ///
    /// A flush of a host does not cover writes that were acknowledged while it was in flight. So the next
    /// flush fails, too, and each that is in flight now.
    pub(super) fn flush_was_lost(&mut self, io: &mut Io<'_>) {
        self.unflushed = self.work.is_some();
        self.back = BACK + (self.back - 1) % (u8::MAX - BACK);
        if let Some(work) = self.work.as_mut().filter(|work| !work.durable) {
            work.writer.make_stale();
            self.repair = true;
        }
        self.copies.iter_mut().for_each(|(_, copy)| copy.may_be_gone());
        for number in std::mem::take(&mut self.ready) {
            self.give_up(number, Status::WRITE_FAULT, io);
        }
    }
}
