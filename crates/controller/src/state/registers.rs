//! Controller properties and the state that they control (Base 3.1.3, 3.5).

use crate::state::doorbells::Doorbells;
use crate::state::limits::{IO_QUEUES_MAX, QUEUE_ENTRIES_MAX};
use sluice_command::handover::RegisterRecord;
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_nvme::register;
use sluice_nvme::register::{Cc, csts};

/// Worst time from enable to ready and back, in units of 500 ms (CAP.TO and CRTO).
const READY_TIMEOUT: u64 = 40;

/// Largest memory page, in the unit of CAP.MPSMAX and CC.MPS: 4 KiB times two to the power of it.
const MPS_MAX: u64 = 4;

/// Controller Capabilities (Base 3.1.3.1): contiguous queues, round robin and the weighted kind, doorbell
/// stride 4, the NVM command set, pages of 4 to 64 KiB, ready with media.
const CAP: u64 = (QUEUE_ENTRIES_MAX as u64 - 1)
    | 1 << 16
    | 1 << 17
    | READY_TIMEOUT << 24
    | 1 << 37
    | MPS_MAX << 52
    | 1 << 59;

/// NVM Subsystem Reset Supported. Over a message-based transport a host ends its association instead.
const CAP_NSSRS: u64 = 1 << 36;

const _: () = assert!(IO_QUEUES_MAX as u32 * 8 + 8 <= 4096, "every doorbell lies in one page");

/// Arbitration mechanisms (CC.AMS).
const ROUND_ROBIN: u8 = 0;

const WEIGHTED: u8 = 1;

/// Action that a register write requests of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterAction {
    Nothing,
    Enable,
    Disable,
    /// Flush and report the end, since CC.SHN was set.
    Shutdown,
    /// NVM Subsystem Reset, since NSSR was written.
    ResetSubsystem,
}

/// State of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// CC.EN = 0 and nothing in flight.
    Disabled,
    /// Ready.
    Enabled,
    /// Waiting for commands in flight, after CC.EN went to 0 or a reset from outside.
    Draining,
}

#[derive(Clone, Debug)]
pub(crate) struct Registers {
    pub(crate) state: State,
    pub(crate) cc: Cc,
    cap: u64,
    csts: u32,
    interrupt_mask: u32,
    pub(crate) aqa: u32,
    pub(crate) asq: u64,
    pub(crate) acq: u64,
}

impl Registers {
    pub(crate) fn new() -> Self {
        let (state, cap) = (State::Disabled, CAP | CAP_NSSRS);
        Self { state, cc: Cc(0), cap, csts: 0, interrupt_mask: 0, aqa: 0, asq: 0, acq: 0 }
    }

    /// Sets whether the host can reset the subsystem by a register.
    pub(crate) fn offer_subsystem_reset(&mut self, offered: bool) {
        self.cap = if offered { CAP | CAP_NSSRS } else { CAP };
    }

    /// Shows the host that the subsystem was reset, even if its controller is reset more often before it
    /// looks. The registers are as after power on, but a ready controller stays ready until nothing accesses
    /// host memory any more. Other resets by a host behave alike.
    pub(crate) fn subsystem_reset_occurred(&mut self) {
        let ready = self.csts & csts::RDY;
        self.power_on();
        self.csts = csts::NSSRO | ready;
    }

    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.csts & csts::RDY != 0
    }

    pub(crate) fn is_fatal(&self) -> bool {
        self.csts & csts::CFS != 0
    }

    pub(crate) fn set_fatal(&mut self) {
        self.csts |= csts::CFS;
    }

    pub(crate) fn set_ready(&mut self) {
        self.state = State::Enabled;
        // A controller that was shut down while it was disabled is active again.
        self.csts = self.csts & !csts::SHST_MASK | csts::RDY;
    }

    pub(crate) fn shutdown_begins(&mut self) {
        self.csts = self.csts & !csts::SHST_MASK | csts::SHST_IN_PROGRESS;
    }

    pub(crate) fn shutdown_complete(&mut self) {
        self.csts = self.csts & !csts::SHST_MASK | csts::SHST_COMPLETE;
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.csts & csts::SHST_MASK == csts::SHST_IN_PROGRESS
    }

    /// Returns whether the host has shut the controller down, or disabled it, so that nothing can be lost.
    pub(crate) fn is_prepared_for_power_loss(&self) -> bool {
        !self.is_ready() || self.is_shut_down()
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.csts & csts::SHST_MASK == csts::SHST_COMPLETE
    }

    /// Returns whether INTx is masked. Only vector 0 counts, since there is just the one pin.
    pub(crate) fn interrupts_masked(&self) -> bool {
        self.interrupt_mask & 1 != 0
    }

    /// Returns the entries of the admin submission and completion queue.
    pub(crate) fn admin_sizes(&self) -> (u32, u32) {
        ((self.aqa & 0xfff) + 1, (self.aqa >> 16 & 0xfff) + 1)
    }

    /// Returns the part of the registers that a successor of this process needs.
    pub(crate) fn record(&self, doorbells: &Doorbells) -> RegisterRecord {
        RegisterRecord {
            cc: self.cc.0,
            csts: self.csts,
            aqa: self.aqa,
            reserved: 0,
            asq: self.asq,
            acq: self.acq,
            shadow: doorbells.shadow().map_or([0; 2], |shadow| shadow.addresses),
        }
    }

    /// Resets everything except for the admin queue's addresses and sizes, after CC.EN went to 0 (Base
    /// 3.7.2).
    pub(crate) fn controller_reset(&mut self) {
        self.state = State::Disabled;
        self.csts &= csts::NSSRO;
        self.interrupt_mask = 0;
    }

    /// Resets everything, after a reset from outside.
    pub(crate) fn power_on(&mut self) {
        *self = Self { cap: self.cap, ..Self::new() };
    }

    pub(crate) fn read(&self, offset: u32, data: &mut [u8]) {
        for (position, byte) in data.iter_mut().enumerate() {
            let at = offset.saturating_add(position as u32);
            *byte = (self.dword(at & !3) >> (8 * (at & 3))) as u8;
        }
    }

    fn dword(&self, offset: u32) -> u32 {
        match offset {
            register::CAP => self.cap as u32,
            0x04 => (self.cap >> 32) as u32,
            register::VS => register::VERSION,
            register::INTMS | register::INTMC => self.interrupt_mask,
            register::CC => self.cc.0,
            register::CSTS => self.csts,
            register::AQA => self.aqa,
            register::ASQ => self.asq as u32,
            0x2c => (self.asq >> 32) as u32,
            register::ACQ => self.acq as u32,
            0x34 => (self.acq >> 32) as u32,
            register::CRTO => READY_TIMEOUT as u32,
            _ => 0,
        }
    }

    /// Handles a write of one aligned dword. Writes to read-only and reserved registers change nothing.
    pub(crate) fn write(&mut self, offset: u32, value: u32) -> RegisterAction {
        match offset {
            register::INTMS => self.interrupt_mask |= value,
            register::INTMC => self.interrupt_mask &= !value,
            register::CC => return self.configure(Cc(value)),
            register::CSTS => self.csts &= !(value & csts::NSSRO),
            register::NSSR if value == register::SUBSYSTEM_RESET && self.cap & CAP_NSSRS != 0 => {
                return RegisterAction::ResetSubsystem;
            }
            // Admin queue properties may only change while disabled (Base 3.1.3.8).
            register::AQA if !self.cc.enabled() => self.aqa = value & 0x0fff_0fff,
            register::ASQ if !self.cc.enabled() => {
                self.asq = self.asq >> 32 << 32 | u64::from(value & !0xfff)
            }
            0x2c if !self.cc.enabled() => self.asq = self.asq & 0xffff_ffff | u64::from(value) << 32,
            register::ACQ if !self.cc.enabled() => {
                self.acq = self.acq >> 32 << 32 | u64::from(value & !0xfff)
            }
            0x34 if !self.cc.enabled() => self.acq = self.acq & 0xffff_ffff | u64::from(value) << 32,
            _ => {}
        }
        RegisterAction::Nothing
    }

    fn configure(&mut self, new: Cc) -> RegisterAction {
        let old = self.cc;
        self.cc = new;
        if old.enabled() && !new.enabled() {
            return RegisterAction::Disable;
        }
        if !old.enabled() && new.enabled() {
            return RegisterAction::Enable;
        }
        if old.shn() == 0 && new.shn() != 0 {
            return RegisterAction::Shutdown;
        }
        RegisterAction::Nothing
    }

    /// Returns whether this controller supports all that CC selects at enable (Base 3.1.3.5).
    pub(crate) fn is_supported(&self) -> bool {
        let (sq, cq) = self.admin_sizes();
        let arbitrates = [ROUND_ROBIN, WEIGHTED].contains(&self.cc.ams());
        self.cc.css() == 0 && self.cc.page_size() <= 4096 << MPS_MAX && arbitrates && sq >= 2 && cq >= 2
    }

    /// Returns whether the host has selected weighted round robin with an urgent class.
    #[inline]
    pub(crate) fn is_weighted(&self) -> bool {
        self.cc.ams() == WEIGHTED
    }
}

/// Registers of a controller in a record.
impl Registers {
    pub(crate) fn put(&self, part: &mut Writer) {
        [self.cc.0, self.csts, self.interrupt_mask, self.aqa].into_iter().for_each(|it| part.put(it));
        part.put(self.asq);
        part.put(self.acq);
        part.put(self.state == State::Enabled);
        part.put(self.cap & CAP_NSSRS != 0);
    }

    pub(crate) fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let mut registers = Self::new();
        registers.cc = Cc(part.get()?);
        registers.csts = part.get()?;
        registers.interrupt_mask = part.get()?;
        registers.aqa = part.get()?;
        registers.asq = part.get()?;
        registers.acq = part.get()?;
        registers.state = if part.get()? { State::Enabled } else { State::Disabled };
        registers.offer_subsystem_reset(part.get()?);
        Ok(registers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: Base 3.1.3, properties can be read whole and in parts.
    #[test]
    fn reads_of_any_width_agree() {
        let registers = Registers::new();
        let mut wide = [0; 8];
        registers.read(register::CAP, &mut wide);
        assert_eq!(u64::from_le_bytes(wide), CAP | CAP_NSSRS);
        for at in 0..8 {
            let mut byte = [0; 1];
            registers.read(at, &mut byte);
            assert_eq!(byte[0], wide[at as usize]);
        }
    }

    /// Conformance: Base 3.1.3.8, AQA, ASQ and ACQ do not change while the controller is enabled.
    #[test]
    fn admin_queue_properties_are_fixed_while_enabled() {
        let mut registers = Registers::new();
        registers.write(register::AQA, 0xffff_ffff);
        assert_eq!(registers.aqa, 0x0fff_0fff);
        assert_eq!(registers.write(register::CC, 1), RegisterAction::Enable);
        registers.write(register::AQA, 0);
        registers.write(register::ASQ, 0x5000);
        assert_eq!((registers.aqa, registers.asq), (0x0fff_0fff, 0));
    }
}
