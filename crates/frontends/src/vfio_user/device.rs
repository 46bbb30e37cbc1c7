//! What this front-end needs of a controller.

use sluice_controller::{Attached, Controller, DmaRequest, DoorbellMode, RecallCause, Subsystem};
use sluice_memory::{Removed, SharedRegion, Space};
use std::borrow::BorrowMut;

/// A controller as its transport sees it: registers, doorbells, turns and interrupts.
///
/// A trait, so that the front-end can be shown a device that is in the middle of something for as long
/// as a test wants. [`Controller`] says what each method means.
pub trait Device {
    /// BAR0 below the doorbells; any offset and length.
    fn read_register(&self, offset: u32, data: &mut [u8]);
    /// BAR0 below the doorbells; any offset and length.
    fn write_register(&mut self, offset: u32, data: &[u8], space: &Space, now_ns: u64);
    /// A doorbell written over the socket; `offset` is in bytes from the first doorbell.
    fn ring(&mut self, offset: u32, value: u32);
    /// The memory that a client may map. The doorbells are at the offset in its *file* that they have
    /// in BAR0, [`DOORBELLS`](sluice_nvme::register::DOORBELLS).
    fn doorbells(&self) -> &SharedRegion;
    fn set_doorbell_mode(&mut self, mode: DoorbellMode);
    fn turn(&mut self, space: &Space, now_ns: u64) -> usize;
    /// Asks the cache for what the next turn looks at first.
    fn look_ahead(&self) {}
    /// A completion for one of the device's own targets.
    fn event(&mut self, token: u64, result: i32, now_ns: u64);
    /// About to sleep. True if there is work after all.
    fn arm(&mut self) -> bool;
    /// The same of what several devices may share.
    fn arm_layers(&mut self) -> bool {
        false
    }
    fn disarm(&mut self);
    fn deadline_ns(&mut self) -> Option<u64>;
    /// Takes no more commands in the next turn; those in flight go on.
    fn pause(&mut self);
    /// What was taken has completed, all but requests for events that may never come.
    fn is_at_rest(&self) -> bool;
    /// Every queue is served here.
    fn is_whole(&self) -> bool {
        true
    }
    /// Has those that are not come here.
    fn recall_groups(&mut self) {}
    /// Begins a reset, which is over when the device is quiescent.
    fn reset(&mut self);
    /// Nothing is in flight, and no reset is under way.
    fn is_quiescent(&self) -> bool;
    fn uses(&self, removed: &Removed) -> bool;
    fn forget_memory(&mut self, removed: &Removed);
    /// There is more memory.
    fn find_memory(&mut self, _space: &Space) {}
    fn take_vectors(&mut self, signal: &mut dyn FnMut(u16));
    fn intx_asserted(&mut self) -> bool;
    fn vectors(&self) -> u16;
    /// There is something that only the client can do.
    fn has_dma_requests(&self) -> bool {
        false
    }
    /// The next thing that only the client can do, in at most so many bytes; those that it writes go to `data`.
    fn take_dma_request(&mut self, _most: usize, _data: &mut Vec<u8>, _now_ns: u64) -> Option<DmaRequest> {
        None
    }
    /// The client has done an errand, and sent what it read; none if it could not.
    fn complete_dma_request(&mut self, _id: u64, _data: Option<&[u8]>) {}
    /// Shows the client's memory to a device of its own, and so needs its files.
    fn shares_memory(&self) -> bool {
        false
    }
}

impl<C: BorrowMut<Controller>, S: BorrowMut<Subsystem>> Device for Attached<C, S> {
    fn read_register(&self, offset: u32, data: &mut [u8]) {
        Attached::read_register(self, offset, data);
    }

    fn write_register(&mut self, offset: u32, data: &[u8], space: &Space, now_ns: u64) {
        Attached::write_register(self, offset, data, space, now_ns);
    }

    fn ring(&mut self, offset: u32, value: u32) {
        Attached::ring(self, offset, value);
    }

    fn doorbells(&self) -> &SharedRegion {
        Attached::doorbells(self)
    }

    fn set_doorbell_mode(&mut self, mode: DoorbellMode) {
        Attached::set_doorbell_mode(self, mode);
    }

    fn turn(&mut self, space: &Space, now_ns: u64) -> usize {
        Attached::turn(self, space, now_ns)
    }

    fn look_ahead(&self) {
        Attached::look_ahead(self);
    }

    fn event(&mut self, token: u64, result: i32, now_ns: u64) {
        Attached::event(self, token, result, now_ns);
    }

    fn arm(&mut self) -> bool {
        self.controller.borrow_mut().arm(self.subsystem.borrow())
    }

    fn arm_layers(&mut self) -> bool {
        self.subsystem.borrow_mut().arm()
    }

    fn disarm(&mut self) {
        Attached::disarm(self);
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        Attached::deadline_ns(self)
    }

    fn pause(&mut self) {
        Attached::pause(self);
    }

    fn is_at_rest(&self) -> bool {
        self.unfinished() == 0 && !self.is_delivering()
    }

    fn is_whole(&self) -> bool {
        self.controller.borrow().has_all_queues()
    }

    fn recall_groups(&mut self) {
        self.controller.borrow_mut().recall_groups(RecallCause::Client);
    }

    fn reset(&mut self) {
        Attached::reset(self);
    }

    fn is_quiescent(&self) -> bool {
        Attached::is_quiescent(self)
    }

    fn uses(&self, removed: &Removed) -> bool {
        Attached::uses(self, removed)
    }

    fn forget_memory(&mut self, removed: &Removed) {
        Attached::forget_memory(self, removed);
    }

    fn find_memory(&mut self, space: &Space) {
        Attached::find_memory(self, space);
    }

    fn take_vectors(&mut self, signal: &mut dyn FnMut(u16)) {
        Attached::take_vectors(self, signal);
    }

    fn intx_asserted(&mut self) -> bool {
        Attached::intx_asserted(self)
    }

    fn vectors(&self) -> u16 {
        Attached::vectors(self)
    }

    fn has_dma_requests(&self) -> bool {
        Attached::has_dma_requests(self)
    }

    fn take_dma_request(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<DmaRequest> {
        Attached::take_dma_request(self, most, data, now_ns)
    }

    fn complete_dma_request(&mut self, id: u64, data: Option<&[u8]>) {
        Attached::complete_dma_request(self, id, data);
    }

    fn shares_memory(&self) -> bool {
        Attached::shares_memory(self)
    }
}
