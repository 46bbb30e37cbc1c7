//! Submission entries: any commands on any queues, any doorbells, any turns, with guest memory that changes
//! and is unmapped in between.

use crate::guest::{WINDOWS, address};
use crate::host::Host;
use crate::layers::NAMESPACES;
use crate::{Input, draw};
use sluice_controller::DoorbellMode;
use sluice_nvme::SubmissionEntry;
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::FromBytes;

/// Steps of one run, so that it stays short.
const STEPS_MAX: usize = 500;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mode = if input.one_in(4) { DoorbellMode::Mapped } else { DoorbellMode::Trapped };
    let mut host = Host::new(data, mode);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        step(&mut host, &mut input);
    }
    host.finish();
}

fn step(host: &mut Host, input: &mut Input<'_>) {
    match input.byte() {
        0..64 => submit(host, input, false),
        64..112 => submit(host, input, true),
        112..136 => host.guest.poke(address(input), &draw::structures(input, address)),
        136..160 => drop(host.turn()),
        160..176 => drop(host.reap()),
        176..192 => drop(host.answer()),
        192..208 => host.create_pair(u16::from(input.byte()) % 8 + 1, 2 << (input.below(6))),
        208..216 => host.keeper.pattern.store(input.u32(), Relaxed),
        216..224 => host.sleep(),
        224..228 => host.use_shadow(),
        228..232 => host.wait(1 << (input.byte() & 0x3f)),
        232..236 => host.unmap(input.below(WINDOWS.len())),
        236..240 => host.map(input.below(WINDOWS.len())),
        240..244 => host.ring_nonsense(u32::from(input.u16()) & 0xfff, input.dword()),
        244..247 => resize(host, input),
        247..249 => host.enable(),
        249 => host.reset(),
        250..253 => write_register(host, input),
        253 => stray_event(host, input),
        _ => look(host),
    }
}

/// Submits a command, most often with a doorbell at once and a turn to take it in.
fn submit(host: &mut Host, input: &mut Input<'_>, is_admin: bool) {
    let how = input.byte();
    let queues: Vec<u16> = host.sqs.keys().copied().filter(|id| (*id == 0) == is_admin).collect();
    if queues.is_empty() {
        return;
    }
    let sq = queues[usize::from(how >> 4) % queues.len()];
    let entry = match how & 0xf {
        0 => SubmissionEntry::read_from_prefix(input.bytes(SubmissionEntry::SIZE))
            .map_or_else(|_| SubmissionEntry::default(), |(entry, _)| entry),
        _ => draw::entry(input, is_admin, address),
    };
    host.submit(sq, entry);
    if how & 3 != 3 {
        host.ring(sq);
    }
    if how & 4 != 0 {
        host.turn();
        host.reap();
    }
}

/// Makes a namespace smaller as an operator, or restores its size.
fn resize(host: &mut Host, input: &mut Input<'_>) {
    let (nsid, block_size, blocks) = input.pick(&NAMESPACES);
    let blocks = (u64::from(input.byte()) + 1).min(blocks);
    host.resize(nsid, blocks * u64::from(block_size));
}

/// Writes a register, mostly CC: shutdown, disable, enable without waiting.
fn write_register(host: &mut Host, input: &mut Input<'_>) {
    use sluice_nvme::register::{ACQ, AQA, ASQ, CC, CSTS, INTMC, INTMS};
    let offset = input.pick(&[CC, CC, CC, CC, AQA, ASQ, ACQ, INTMS, INTMC, CSTS]);
    let value = match offset {
        CC => 6 << 16 | 4 << 20 | u32::from(input.byte()) << 14 | u32::from(input.byte()) & 1,
        ASQ | ACQ => address(input) as u32,
        _ => input.dword(),
    };
    host.write_register(offset, &value.to_le_bytes());
}

/// Delivers an engine's repeated answer, or one without a request.
fn stray_event(host: &mut Host, input: &mut Input<'_>) {
    let token = if input.one_in(2) { host.keeper.stale() } else { None };
    let token =
        token.unwrap_or_else(|| u64::from(input.u32()) | u64::from(input.byte() & 0xf) << 40 | 1 << 32);
    host.event(token);
}

/// Runs the periodic queries of a front-end and an operator.
fn look(host: &mut Host) {
    host.controller.controller.take_vectors(|_| ());
    let _ = host.controller.controller.intx_asserted();
    let overview = host.controller.overview();
    assert!(overview.event_requests <= 4, "{overview:?}");
}
