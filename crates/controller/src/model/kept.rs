//! Controller whose record is kept outside of this process, in case that the process dies.
//!
//! Completions of admin commands wait for a record with their effects. So a successor finds each admin command
//! either executed, with its result, or not begun. I/O commands and their queues are in the hand-over segments,
//! whose stores cost the data path nothing more.

use crate::model::Controller;
use crate::state::kept::Kept;
use crate::state::queue::Service;
use sluice_command::Command;
use sluice_nvme::CompletionEntry;
use std::os::fd::BorrowedFd;

impl Controller {
    /// Begins to hold results of admin commands until they are [released](Self::release_results).
    pub fn keep(&mut self) {
        self.kept.get_or_insert_default();
        self.hold_results();
    }

    /// Holds results no more.
    pub fn stop_keeping(&mut self) {
        self.release_results();
        if let Some(cq) = &mut self.cqs[0]
            && cq.service == Service::Kept
        {
            cq.service = Service::On;
        }
        // Commands of a dead process are repeated nevertheless.
        self.kept.take_if(|kept| kept.repeats.is_empty());
    }

    /// Takes the commands of a dead process that are to be repeated.
    pub(crate) fn take_repeats(&mut self) -> Vec<Command> {
        self.kept.as_mut().map(|kept| std::mem::take(&mut kept.repeats)).unwrap_or_default()
    }

    /// Sets the remains of a dead process: commands to repeat, and results that the host may have.
    pub(crate) fn take_remains(&mut self, repeats: Vec<Command>, results: Vec<CompletionEntry>) {
        if let Some(cq) = &mut self.cqs[0] {
            cq.reserve(results.len() as u32);
        }
        **self.kept.get_or_insert_default() = Kept { results, repeats };
        self.hold_results();
    }

    /// Returns whether results wait until a record is kept.
    #[inline]
    pub fn has_results(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.results.is_empty())
    }

    /// Returns the results that wait, the oldest first.
    pub fn results(&self) -> &[CompletionEntry] {
        self.kept.as_ref().map_or(&[], |kept| &kept.results)
    }

    /// Returns the descriptor of the segment with the queues.
    pub fn handover_fd(&self) -> BorrowedFd<'_> {
        self.handover.fd()
    }

    /// Holds results from now on, if the controller is kept and its admin completion queue is there.
    pub(crate) fn hold_results(&mut self) {
        if self.kept.is_some()
            && let Some(cq) = &mut self.cqs[0]
            && cq.service == Service::On
        {
            cq.service = Service::Kept;
        }
    }

    /// Holds a result. Its slot in the queue stays reserved.
    #[cold]
    pub(crate) fn hold_result(&mut self, entry: CompletionEntry) {
        self.kept.get_or_insert_default().results.push(entry);
    }

    /// Posts the results that wait, after a record with their effects was kept.
    pub fn release_results(&mut self) {
        let Some(kept) = &mut self.kept else { return };
        for entry in std::mem::take(&mut kept.results) {
            let Some(cq) = &mut self.cqs[0] else { continue };
            match cq.service {
                Service::On | Service::Kept => {
                    cq.post(entry);
                    let vector = cq.vector;
                    vector.into_iter().for_each(|vector| self.signal(vector));
                    self.note_queue(0);
                }
                Service::Unmapped => self.hold_completion(0, entry),
                Service::Over => cq.unreserve(1),
            }
        }
        self.note_posted();
    }
}
