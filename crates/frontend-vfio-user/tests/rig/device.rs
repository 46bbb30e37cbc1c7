//! Device with scripted behaviour, which records the calls.

use sluice_controller::DoorbellMode;
use sluice_frontend_vfio_user::Device;
use sluice_memory::{Removed, SharedRegion, Space};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State that the test and the device share.
#[derive(Default)]
pub(crate) struct Script {
    /// Commands in flight, which point into all memory.
    pub(crate) busy: bool,
    /// Vectors that have completions.
    pub(crate) vectors: Vec<u16>,
    /// Level of the interrupt pin.
    pub(crate) intx: bool,
    /// Register writes, by offset.
    pub(crate) registers: Vec<(u32, Vec<u8>)>,
    /// Doorbells that were written over the socket.
    pub(crate) rung: Vec<(u32, u32)>,
    /// Value of the mapped doorbell of SQ 0 in the last turn.
    pub(crate) mapped_doorbell: u32,
    pub(crate) mode: DoorbellMode,
    pub(crate) enabled: bool,
    /// Pause requested.
    pub(crate) paused: bool,
    pub(crate) resets: u32,
    pub(crate) forgotten: u32,
    pub(crate) turns: u64,
    /// Reset requested that no turn has finished yet.
    resetting: bool,
}

/// Bytes of the file that holds the doorbells.
const DOORBELL_FILE: usize = 0x2000;
const DOORBELLS: usize = 0x1000;

pub(crate) struct Scripted {
    script: Arc<Mutex<Script>>,
    doorbells: SharedRegion,
}

impl Scripted {
    pub(crate) fn new(script: Arc<Mutex<Script>>) -> Self {
        let doorbells = SharedRegion::new("doorbells", DOORBELL_FILE).expect("memory");
        Self { script, doorbells }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        look(&self.script)
    }
}

/// Locks the script. A test that failed with the lock held does not hide its failure behind a poisoned lock.
pub(crate) fn look(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device for Scripted {
    /// Returns for every byte the low byte of its offset, but for CC the value in the script.
    fn read_register(&self, offset: u32, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(&mut *data) {
            *byte = at as u8;
        }
        if offset == 0x14 && self.script().enabled {
            data[0] = 1;
        }
    }

    fn write_register(&mut self, offset: u32, data: &[u8], _: &Space, _: u64) {
        self.script().registers.push((offset, data.to_vec()));
    }

    fn ring(&mut self, offset: u32, value: u32) {
        self.script().rung.push((offset, value));
    }

    fn doorbells(&self) -> &SharedRegion {
        &self.doorbells
    }

    fn set_doorbell_mode(&mut self, mode: DoorbellMode) {
        self.script().mode = mode;
    }

    fn turn(&mut self, _: &Space, _: u64) -> usize {
        let tail = self.doorbells.atomic_u32(DOORBELLS).load(std::sync::atomic::Ordering::Acquire);
        let mut script = self.script();
        script.turns += 1;
        script.resetting &= script.busy;
        let moved = tail != script.mapped_doorbell;
        script.mapped_doorbell = tail;
        usize::from(moved)
    }

    fn event(&mut self, _: u64, _: i32, _: u64) {}

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn deadline_ns(&mut self) -> Option<u64> {
        None
    }

    fn pause(&mut self) {
        self.script().paused = true;
    }

    fn is_at_rest(&self) -> bool {
        !self.script().busy
    }

    fn reset(&mut self) {
        let mut script = self.script();
        script.resets += 1;
        script.resetting = true;
        script.vectors.clear();
    }

    fn is_quiescent(&self) -> bool {
        let script = self.script();
        !script.busy && !script.resetting
    }

    fn uses(&self, removed: &Removed) -> bool {
        self.script().busy && !removed.is_empty()
    }

    fn forget_memory(&mut self, _: &Removed) {
        self.script().forgotten += 1;
    }

    fn take_vectors(&mut self, signal: &mut dyn FnMut(u16)) {
        let vectors = std::mem::take(&mut self.script().vectors);
        vectors.into_iter().for_each(signal);
    }

    fn intx_asserted(&mut self) -> bool {
        self.script().intx
    }

    fn vectors(&self) -> u16 {
        129
    }
}
