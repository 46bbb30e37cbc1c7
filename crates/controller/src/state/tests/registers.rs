//! Registers by their offsets, and their changes by a host and by the controller.

use super::{bytes_of, read as read_part};
use crate::state::doorbells::Doorbells;
use crate::state::registers::{RegisterAction, Registers, State};
use sluice_command::handover::RegisterRecord;
use sluice_nvme::register::{self, csts};
use std::collections::BTreeMap;

fn read(registers: &Registers, offset: u32) -> u32 {
    let mut bytes = [0xff; 4];
    registers.read(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}

/// Registers with known values, not enabled.
fn known() -> Registers {
    let mut registers = Registers::new();
    let values = [
        (register::INTMS, 0xa5),
        (register::CC, 0x0046_0000),
        (register::AQA, 0xf012_f034),
        (register::ASQ, 0x1234_5fff),
        (register::ASQ + 4, 0x89),
        (register::ACQ, 0x3456_7fff),
        (register::ACQ + 4, 0x9a),
    ];
    for (offset, value) in values {
        assert_eq!(registers.write(offset, value), RegisterAction::Nothing, "{offset:#x}");
    }
    registers
}

/// Conformance: Base 3.1.3, each property is at its offset, and all others are zero.
#[test]
fn each_register_is_at_its_offset() {
    let registers = known();
    let expected = BTreeMap::from([
        (register::CAP, 0x2803_0fff),
        (register::CAP + 4, 0x0840_0030),
        (register::VS, 0x0002_0000),
        (register::INTMS, 0xa5),
        (register::INTMC, 0xa5),
        (register::CC, 0x0046_0000),
        (register::AQA, 0x0012_0034),
        (register::ASQ, 0x1234_5000),
        (register::ASQ + 4, 0x89),
        (register::ACQ, 0x3456_7000),
        (register::ACQ + 4, 0x9a),
        (register::CRTO, 40),
    ]);
    for offset in (0..0x2000).step_by(4) {
        assert_eq!(read(&registers, offset), expected.get(&offset).copied().unwrap_or(0), "{offset:#x}");
    }
    let mut end = [0xff; 8];
    registers.read(u32::MAX - 3, &mut end);
    assert_eq!(end, [0; 8]);
    assert_eq!(registers.admin_sizes(), (0x35, 0x13));
    let mut plain = registers;
    plain.offer_subsystem_reset(false);
    assert_eq!(read(&plain, register::CAP + 4), 0x0840_0020);
    plain.power_on();
    assert_eq!(read(&plain, register::CAP + 4), 0x0840_0020, "the transport is the same");
    assert_eq!((read(&plain, register::CC), read(&plain, register::INTMS), plain.asq), (0, 0, 0));
    plain.offer_subsystem_reset(true);
    assert_eq!(read(&plain, register::CAP + 4), 0x0840_0030);
}

/// Conformance: Base 3.1.3.3, a one sets or clears a bit of the interrupt mask.
#[test]
fn the_interrupt_mask_has_bits_of_its_own() {
    let mut registers = Registers::new();
    let steps = [
        (register::INTMS, 0b1010, 0b1010, false),
        (register::INTMS, 0b0011, 0b1011, true),
        (register::INTMC, 0b0110, 0b1001, true),
        (register::INTMC, 0b0001, 0b1000, false),
    ];
    for (offset, value, mask, masked) in steps {
        registers.write(offset, value);
        assert_eq!((read(&registers, register::INTMC), registers.interrupts_masked()), (mask, masked));
    }
    registers.write(register::INTMS, 1);
    registers.controller_reset();
    assert_eq!((read(&registers, register::INTMS), registers.interrupts_masked()), (0, false));
}

/// Conformance: Base 3.1.3.8, the admin queue's properties are read-only while CC.EN is set.
#[test]
fn a_host_changes_admin_queues_only_while_they_are_not_used() {
    let mut registers = known();
    assert_eq!(registers.write(register::CC, 0x0046_0001), RegisterAction::Enable);
    let of = |registers: &Registers| (registers.aqa, registers.asq, registers.acq);
    let before = of(&registers);
    for offset in [register::AQA, register::ASQ, register::ASQ + 4, register::ACQ, register::ACQ + 4] {
        assert_eq!(registers.write(offset, 0x0fff_0000), RegisterAction::Nothing);
        assert_eq!(of(&registers), before, "{offset:#x}");
    }
    assert_eq!(registers.write(register::CC, 0x0046_0000), RegisterAction::Disable);
    for (offset, value) in
        [(register::ASQ, 0x1000), (register::ASQ + 4, 2), (register::ACQ, 0x3000), (register::ACQ + 4, 4)]
    {
        registers.write(offset, value);
    }
    assert_eq!((registers.asq, registers.acq), (0x2_0000_1000, 0x4_0000_3000));
    // A half leaves the other one as it is, in either order.
    registers.write(register::ASQ, 0x5fff);
    registers.write(register::ACQ, 0x7fff);
    assert_eq!((registers.asq, registers.acq), (0x2_0000_5000, 0x4_0000_7000));
    // Read-only and reserved ones.
    for offset in [register::CAP, register::CAP + 4, register::VS, register::CRTO, 0x38, 0x3c, 0x40] {
        let before = read(&registers, offset);
        assert_eq!(registers.write(offset, u32::MAX), RegisterAction::Nothing);
        assert_eq!(read(&registers, offset), before, "{offset:#x}");
    }
}

/// Conformance: Base 3.1.3.5, each change of CC.EN and CC.SHN has its effect, and a repetition has none.
#[test]
fn each_change_of_the_configuration_has_its_action() {
    use RegisterAction::{Disable, Enable, Nothing, Shutdown};
    const SHN: u32 = 1 << 14;
    let changes = [
        (0, 0, Nothing),
        (0, 1, Enable),
        (0, SHN, Shutdown),
        (0, 2 * SHN, Shutdown),
        (0, SHN | 1, Enable),
        (1, 1, Nothing),
        (1, 0, Disable),
        (1, SHN, Disable),
        (1, SHN | 1, Shutdown),
        (1, (2 * SHN) | 1, Shutdown),
        (SHN | 1, SHN | 1, Nothing),
        (SHN | 1, (2 * SHN) | 1, Nothing),
        (SHN | 1, 1, Nothing),
        (SHN | 1, 0, Disable),
        (SHN, 0, Nothing),
        (SHN, 2 * SHN, Nothing),
        (SHN, 1, Enable),
    ];
    for (old, new, expected) in changes {
        let mut registers = Registers::new();
        registers.write(register::CC, old);
        assert_eq!(registers.write(register::CC, new), expected, "from {old:#x} to {new:#x}");
        assert_eq!(registers.cc.0, new);
    }
    let mut registers = Registers::new();
    for (value, expected) in [
        (register::SUBSYSTEM_RESET, RegisterAction::ResetSubsystem),
        (register::SUBSYSTEM_RESET + 1, Nothing),
        (0, Nothing),
    ] {
        assert_eq!(registers.write(register::NSSR, value), expected);
    }
    registers.offer_subsystem_reset(false);
    assert_eq!(registers.write(register::NSSR, register::SUBSYSTEM_RESET), Nothing);
}

/// Returns fatal, ready, shutting down, shut down, and prepared for a loss of power.
fn states(registers: &Registers) -> [bool; 5] {
    [
        registers.is_fatal(),
        registers.is_ready(),
        registers.is_shutting_down(),
        registers.is_shut_down(),
        registers.is_prepared_for_power_loss(),
    ]
}

/// Conformance: Base 3.1.3.6, the status has each state of the controller.
#[test]
fn the_status_follows_the_controller() {
    let mut registers = Registers::new();
    let status = |registers: &Registers| read(registers, register::CSTS);
    assert_eq!((status(&registers), states(&registers)), (0, [false, false, false, false, true]));
    registers.set_ready();
    assert_eq!(registers.state, State::Enabled);
    assert_eq!((status(&registers), states(&registers)), (csts::RDY, [false, true, false, false, false]));
    registers.shutdown_begins();
    let begun = csts::RDY | csts::SHST_IN_PROGRESS;
    assert_eq!((status(&registers), states(&registers)), (begun, [false, true, true, false, false]));
    registers.shutdown_complete();
    let complete = csts::RDY | csts::SHST_COMPLETE;
    assert_eq!((status(&registers), states(&registers)), (complete, [false, true, false, true, true]));
    registers.shutdown_begins();
    assert_eq!(status(&registers), begun);
    registers.shutdown_complete();
    registers.set_ready();
    assert_eq!(status(&registers), csts::RDY, "a controller that is enabled is not shut down");
    registers.set_fatal();
    assert_eq!(
        (status(&registers), states(&registers)),
        (csts::RDY | csts::CFS, [true, true, false, false, false])
    );
    registers.subsystem_reset_occurred();
    assert_eq!(status(&registers), csts::RDY | csts::NSSRO);
    registers.write(register::CSTS, !csts::NSSRO);
    assert_eq!(status(&registers), csts::RDY | csts::NSSRO);
    registers.shutdown_begins();
    registers.controller_reset();
    assert_eq!((status(&registers), registers.state), (csts::NSSRO, State::Disabled));
    registers.write(register::CSTS, csts::NSSRO);
    assert_eq!(status(&registers), 0);
    registers.subsystem_reset_occurred();
    assert_eq!(status(&registers), csts::NSSRO, "a controller that was not ready is not");
    registers.shutdown_complete();
    assert_eq!(states(&registers), [false, false, false, true, true]);
}

/// Conformance: Base 3.1.3.5, all that CC selects is in CAP, and admin queues have two entries or more.
#[test]
fn the_limits_of_a_configuration() {
    let with = |cc: u32, aqa: u32| {
        let mut registers = Registers::new();
        registers.write(register::AQA, aqa);
        registers.write(register::CC, cc);
        (registers.is_supported(), registers.is_weighted())
    };
    const LEAST: u32 = 1 << 16 | 1;
    for css in 0..8 {
        assert_eq!(with(css << 4, LEAST), (css == 0, false), "command set {css}");
    }
    for mps in 0..16 {
        assert_eq!(with(mps << 7, LEAST), (mps <= 4, false), "page size {mps}");
    }
    for ams in 0..8 {
        assert_eq!(with(ams << 11, LEAST), (ams < 2, ams == 1), "arbitration {ams}");
    }
    for (aqa, is_supported) in [(0, false), (1, false), (1 << 16, false), (LEAST, true), (0x0fff_0fff, true)]
    {
        assert_eq!(with(0, aqa).0, is_supported, "{aqa:#x}");
    }
}

#[test]
fn registers_keep_their_values_in_records() {
    for (enabled, offered) in [(true, false), (false, true)] {
        let mut registers = known();
        registers.set_ready();
        registers.shutdown_begins();
        if !enabled {
            registers.state = State::Draining;
        }
        registers.offer_subsystem_reset(offered);
        let bytes = bytes_of(|part| registers.put(part));
        let found = read_part(&bytes, Registers::take);
        for offset in (0..0x80).step_by(4) {
            assert_eq!(read(&found, offset), read(&registers, offset), "{offset:#x}");
        }
        assert_eq!(found.state, if enabled { State::Enabled } else { State::Disabled });
        assert_eq!(bytes_of(|part| found.put(part)), bytes);
        let expected = RegisterRecord {
            cc: 0x0046_0000,
            csts: csts::RDY | csts::SHST_IN_PROGRESS,
            aqa: 0x0012_0034,
            reserved: 0,
            asq: 0x89_1234_5000,
            acq: 0x9a_3456_7000,
            shadow: [0; 2],
        };
        assert_eq!(registers.record(&Doorbells::new().expect("memory")), expected);
    }
}
