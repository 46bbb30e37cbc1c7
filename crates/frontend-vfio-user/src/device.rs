//! Interface of this front-end to a controller.

use sluice_controller::{Attached, Controller, DmaRequest, DoorbellMode, RecallCause, Subsystem};
use sluice_memory::{Removed, SharedRegion, Space};
use std::borrow::BorrowMut;

/// Controller from the side of its transport: registers, doorbells, turns and interrupts.
///
/// The trait exists so that a test can keep a device in the middle of an operation for any time.
/// [`Controller`] documents each method.
pub trait Device {
    /// Reads BAR0 below the doorbells, at any offset and length.
    fn read_register(&self, offset: u32, data: &mut [u8]);
    /// Writes BAR0 below the doorbells, at any offset and length.
    fn write_register(&mut self, offset: u32, data: &[u8], space: &Space, now_ns: u64);
    /// Rings a doorbell that was written over the socket. `offset` is in bytes from the first doorbell.
    fn ring(&mut self, offset: u32, value: u32);
    /// Returns the memory that a client may map. In its *file* the doorbells have the same offset as in BAR0,
    /// [`DOORBELLS`](sluice_nvme::register::DOORBELLS).
    fn doorbells(&self) -> &SharedRegion;
    fn set_doorbell_mode(&mut self, mode: DoorbellMode);
    fn turn(&mut self, space: &Space, now_ns: u64) -> usize;
    /// Prefetches the memory that the next turn reads first.
    fn look_ahead(&self) {}
    /// Handles a completion for one of the device's own targets.
    fn event(&mut self, token: u64, result: i32, now_ns: u64);
    /// Prepares for sleep. Returns whether there is work after all.
    fn arm(&mut self) -> bool;
    /// Prepares layers for sleep, which several devices may share. Returns whether there is work after all.
    fn arm_layers(&mut self) -> bool {
        false
    }
    fn disarm(&mut self);
    fn deadline_ns(&mut self) -> Option<u64>;
    /// Takes no more commands in the next turn. Commands in flight go on.
    fn pause(&mut self);
    /// Returns whether all taken commands have completed, except requests for events that may never come.
    fn is_at_rest(&self) -> bool;
    /// Returns whether every queue is served on this reactor.
    fn is_whole(&self) -> bool {
        true
    }
    /// Recalls the queues that other reactors serve.
    fn recall_groups(&mut self) {}
    /// Begins a reset, which is over when the device is quiescent.
    fn reset(&mut self);
    /// Returns whether no command is in flight and no reset is under way.
    fn is_quiescent(&self) -> bool;
    fn uses(&self, removed: &Removed) -> bool;
    fn forget_memory(&mut self, removed: &Removed);
    /// Serves unmapped queues again whose memory was mapped.
    fn find_memory(&mut self, _space: &Space) {}
    fn take_vectors(&mut self, signal: &mut dyn FnMut(u16));
    fn intx_asserted(&mut self) -> bool;
    fn vectors(&self) -> u16;
    /// Returns whether the device has requests that only the client can execute.
    fn has_dma_requests(&self) -> bool {
        false
    }
    /// Returns the next request for the client, of at most `most` bytes. The bytes of a DMA_WRITE are put
    /// into `data`.
    fn take_dma_request(&mut self, _most: usize, _data: &mut Vec<u8>, _now_ns: u64) -> Option<DmaRequest> {
        None
    }
    /// Completes a request with the bytes that the client has read, or with `None` if the client failed.
    fn complete_dma_request(&mut self, _id: u64, _data: Option<&[u8]>) {}
    /// Returns whether a layer gives a device of its own access to the client's memory, and so needs the
    /// files of that memory.
    fn shares_memory(&self) -> bool {
        false
    }
}

impl<C: BorrowMut<Controller>, S: BorrowMut<Subsystem>> Device for Attached<C, S> {
    fn read_register(&self, offset: u32, data: &mut [u8]) {
        self.controller.borrow().read_register(offset, data);
    }

    fn write_register(&mut self, offset: u32, data: &[u8], space: &Space, now_ns: u64) {
        self.controller.borrow_mut().write_register(self.subsystem.borrow_mut(), offset, data, space, now_ns);
    }

    fn ring(&mut self, offset: u32, value: u32) {
        self.controller.borrow_mut().ring(offset, value);
    }

    fn doorbells(&self) -> &SharedRegion {
        self.controller.borrow().doorbells()
    }

    fn set_doorbell_mode(&mut self, mode: DoorbellMode) {
        self.controller.borrow_mut().set_doorbell_mode(mode);
    }

    fn turn(&mut self, space: &Space, now_ns: u64) -> usize {
        self.controller.borrow_mut().turn(self.subsystem.borrow_mut(), space, now_ns)
    }

    fn look_ahead(&self) {
        self.controller.borrow().look_ahead();
    }

    fn event(&mut self, token: u64, result: i32, now_ns: u64) {
        self.subsystem.borrow_mut().event(token, result, now_ns);
    }

    fn arm(&mut self) -> bool {
        self.controller.borrow_mut().arm(self.subsystem.borrow())
    }

    fn arm_layers(&mut self) -> bool {
        self.subsystem.borrow_mut().arm()
    }

    fn disarm(&mut self) {
        self.controller.borrow_mut().disarm();
        self.subsystem.borrow_mut().disarm();
    }

    fn deadline_ns(&mut self) -> Option<u64> {
        let (controller, subsystem) = (self.controller.borrow_mut(), self.subsystem.borrow_mut());
        [controller.deadline_ns(subsystem), subsystem.deadline_ns()].into_iter().flatten().min()
    }

    fn pause(&mut self) {
        self.controller.borrow_mut().pause(self.subsystem.borrow_mut());
    }

    fn is_at_rest(&self) -> bool {
        let (controller, subsystem) = (self.controller.borrow(), self.subsystem.borrow());
        controller.unfinished(subsystem) + subsystem.unfinished() == 0 && !controller.is_delivering()
    }

    fn is_whole(&self) -> bool {
        self.controller.borrow().has_all_queues()
    }

    fn recall_groups(&mut self) {
        self.controller.borrow_mut().recall_groups(RecallCause::Client);
    }

    fn reset(&mut self) {
        self.controller.borrow_mut().reset(self.subsystem.borrow_mut());
    }

    fn is_quiescent(&self) -> bool {
        self.controller.borrow().is_quiescent(self.subsystem.borrow())
    }

    fn uses(&self, removed: &Removed) -> bool {
        self.controller.borrow().uses(self.subsystem.borrow(), removed)
    }

    fn forget_memory(&mut self, removed: &Removed) {
        self.controller.borrow_mut().forget_memory(self.subsystem.borrow_mut(), removed);
    }

    fn find_memory(&mut self, space: &Space) {
        self.controller.borrow_mut().find_memory(space);
    }

    fn take_vectors(&mut self, signal: &mut dyn FnMut(u16)) {
        self.controller.borrow_mut().take_vectors(signal);
    }

    fn intx_asserted(&mut self) -> bool {
        self.controller.borrow_mut().intx_asserted()
    }

    fn vectors(&self) -> u16 {
        self.controller.borrow().vectors()
    }

    fn has_dma_requests(&self) -> bool {
        self.controller.borrow().has_dma_requests()
    }

    fn take_dma_request(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<DmaRequest> {
        self.controller.borrow_mut().take_dma_request(most, data, now_ns)
    }

    fn complete_dma_request(&mut self, id: u64, data: Option<&[u8]>) {
        self.controller.borrow_mut().complete_dma_request(id, data);
    }

    fn shares_memory(&self) -> bool {
        self.subsystem.borrow().shares_memory()
    }
}
