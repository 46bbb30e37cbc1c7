//! Commands that end before they are done.

use super::*;

impl File {
    /// Ends these commands: at once where nothing of them is with the kernel, and otherwise when that is back.
    ///
    /// An fdatasync names no memory of a host, so a command that waits for one ends at once, and the kernel goes on.
    pub(super) fn end_early(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        let chosen: Vec<Ticket> = self.works.tickets().filter(|it| lane.is_aborted(which, *it)).collect();
        for ticket in chosen {
            let work = self.works.of(ticket);
            if work.is_under_way {
                work.aborted.get_or_insert(why);
                continue;
            }
            self.without_space.retain(|it| *it != ticket);
            self.syncs.leave(ticket);
            self.finish(ticket, why, lane);
        }
        self.space_retry_ns.take_if(|_| self.without_space.is_empty());
    }
}
