//! Controller together with its subsystem.

use crate::engine::capsules::QueuePair;
use crate::model::overview::Overview;
use crate::model::subsystem::Config;
use crate::model::{Controller, Namespace, Subsystem};
use crate::state::client_dma::DmaRequest;
use crate::state::doorbells::DoorbellMode;
use crate::state::health::Statistics;
use crate::state::persist::PersistentRecord;
use crate::state::sanitize::SanitizeRecord;
use sluice_memory::{Removed, SharedRegion, Space};
use sluice_nvme::Status;
use std::borrow::BorrowMut;
use std::io;

/// Identifier of a controller that is the only one of its subsystem.
const CNTLID: u16 = 1;

/// Controller together with its subsystem, both borrowed for a call or both owned: a drive with one
/// controller. Each method forwards to one of the two.
#[derive(Debug)]
pub struct Attached<C = Controller, S = Subsystem> {
    pub controller: C,
    pub subsystem: S,
}

impl Attached {
    /// Creates both.
    ///
    /// # Errors
    /// The operating system has no memory or descriptors for them.
    pub fn new(config: Config) -> io::Result<Self> {
        let mut subsystem = Subsystem::new(config)?;
        let controller = Controller::new(&mut subsystem, CNTLID)?;
        Ok(Self { controller, subsystem })
    }
}

impl<C: BorrowMut<Controller>, S: BorrowMut<Subsystem>> Attached<C, S> {
    fn here(&self) -> (&Controller, &Subsystem) {
        (self.controller.borrow(), self.subsystem.borrow())
    }

    #[inline]
    fn both(&mut self) -> (&mut Controller, &mut Subsystem) {
        (self.controller.borrow_mut(), self.subsystem.borrow_mut())
    }

    pub fn vectors(&self) -> u16 {
        self.controller.borrow().vectors()
    }

    pub fn doorbells(&self) -> &SharedRegion {
        self.controller.borrow().doorbells()
    }

    pub fn set_doorbell_mode(&mut self, mode: DoorbellMode) {
        self.controller.borrow_mut().set_doorbell_mode(mode);
    }

    pub fn doorbell_mode(&self) -> DoorbellMode {
        self.controller.borrow().doorbell_mode()
    }

    #[inline]
    pub fn ring(&mut self, offset: u32, value: u32) {
        self.controller.borrow_mut().ring(offset, value);
    }

    #[inline]
    pub fn take_vectors(&mut self, signal: impl FnMut(u16)) {
        self.controller.borrow_mut().take_vectors(signal);
    }

    pub fn intx_asserted(&mut self) -> bool {
        self.controller.borrow_mut().intx_asserted()
    }

    pub fn read_register(&self, offset: u32, data: &mut [u8]) {
        self.controller.borrow().read_register(offset, data);
    }

    pub fn find_memory(&mut self, space: &Space) {
        self.controller.borrow_mut().find_memory(space);
    }

    pub fn look_ahead(&self) {
        self.controller.borrow().look_ahead();
    }

    pub fn is_fatal(&self) -> bool {
        self.controller.borrow().is_fatal()
    }

    pub fn is_ready(&self) -> bool {
        self.controller.borrow().is_ready()
    }

    pub fn start_keep_alive(&mut self, timeout_ms: u32, now_ns: u64) {
        self.controller.borrow_mut().start_keep_alive(timeout_ms, now_ns);
    }

    pub fn create_queue_pair(&mut self, pair: &QueuePair, space: &Space) -> Result<(), Status> {
        self.controller.borrow_mut().create_queue_pair(pair, space)
    }

    pub fn delete_queue_pair(&mut self, id: u16) -> bool {
        self.controller.borrow_mut().delete_queue_pair(id)
    }

    pub fn write_register(&mut self, offset: u32, data: &[u8], space: &Space, now_ns: u64) {
        let (controller, subsystem) = self.both();
        controller.write_register(subsystem, offset, data, space, now_ns);
    }

    pub fn reset(&mut self) {
        let (controller, subsystem) = self.both();
        controller.reset(subsystem);
    }

    pub fn is_quiescent(&self) -> bool {
        let (controller, subsystem) = self.here();
        controller.is_quiescent(subsystem)
    }

    pub fn pause(&mut self) {
        let (controller, subsystem) = self.both();
        controller.pause(subsystem);
    }

    pub fn unfinished(&self) -> u32 {
        let (controller, subsystem) = self.here();
        controller.unfinished(subsystem) + subsystem.unfinished()
    }

    pub fn in_flight(&self) -> u32 {
        let (controller, subsystem) = self.here();
        controller.in_flight(subsystem)
    }

    pub fn uses(&self, removed: &Removed) -> bool {
        let (controller, subsystem) = self.here();
        controller.uses(subsystem, removed)
    }

    pub fn forget_memory(&mut self, removed: &Removed) {
        let (controller, subsystem) = self.both();
        controller.forget_memory(subsystem, removed);
    }

    #[inline]
    pub fn has_dma_requests(&self) -> bool {
        self.controller.borrow().has_dma_requests()
    }

    pub fn take_dma_request(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<DmaRequest> {
        self.controller.borrow_mut().take_dma_request(most, data, now_ns)
    }

    pub fn complete_dma_request(&mut self, id: u64, data: Option<&[u8]>) {
        self.controller.borrow_mut().complete_dma_request(id, data);
    }

    pub fn is_delivering(&self) -> bool {
        self.controller.borrow().is_delivering()
    }

    pub fn overview(&self) -> Overview {
        let (controller, subsystem) = self.here();
        controller.overview(subsystem)
    }

    pub fn shares_memory(&self) -> bool {
        self.subsystem.borrow().shares_memory()
    }

    pub fn event(&mut self, token: u64, result: i32, now_ns: u64) {
        self.subsystem.borrow_mut().event(token, result, now_ns);
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.subsystem.borrow().namespaces()
    }

    pub fn statistics(&self) -> Statistics {
        self.subsystem.borrow().statistics()
    }

    pub fn resize(&mut self, nsid: u32, size: u64) -> bool {
        self.subsystem.borrow_mut().resize(nsid, size)
    }

    pub fn hold(&mut self, until_ns: u64) {
        self.subsystem.borrow_mut().hold(until_ns);
    }

    pub fn resume(&mut self) {
        self.subsystem.borrow_mut().resume();
    }

    pub fn on_persist(&mut self, sink: impl FnMut(PersistentRecord) + Send + 'static) {
        self.subsystem.borrow_mut().on_persist(sink);
    }

    #[must_use]
    pub fn resume_format(&mut self, nsid: u32, block_size: u32, now_ns: u64) -> bool {
        self.subsystem.borrow_mut().resume_format(nsid, block_size, now_ns)
    }

    pub fn resume_sanitize(&mut self, record: SanitizeRecord, now_ns: u64) {
        self.subsystem.borrow_mut().resume_sanitize(record, now_ns);
    }

    pub fn persisted(&mut self, what: PersistentRecord, well: bool, now_ns: u64) {
        self.subsystem.borrow_mut().persisted(what, well, now_ns);
    }

    #[inline]
    pub fn turn(&mut self, space: &Space, now_ns: u64) -> usize {
        let (controller, subsystem) = self.both();
        controller.turn(subsystem, space, now_ns)
    }

    pub fn arm(&mut self) -> bool {
        let (controller, subsystem) = self.both();
        controller.arm(subsystem) || subsystem.arm()
    }

    pub fn disarm(&mut self) {
        let (controller, subsystem) = self.both();
        controller.disarm();
        subsystem.disarm();
    }

    pub fn deadline_ns(&mut self) -> Option<u64> {
        let (controller, subsystem) = self.both();
        [controller.deadline_ns(subsystem), subsystem.deadline_ns()].into_iter().flatten().min()
    }
}
