//! Registers and configuration space over the socket, against a model of their storage: any offsets and
//! lengths, any order, with resets of every kind in between.

use crate::Input;
use crate::guest::PAGE;
use crate::wire::{Client, PATIENCE, Reply, Wire, run_on_reactor};
use sluice_controller::IO_QUEUES_MAX;
use sluice_frontend_vfio_user::DoorbellPolicy;
use sluice_memory::SharedRegion;
use sluice_nvme::register::{self, csts};
use sluice_reactor::Local;
use sluice_vfio_user::device::region::{BAR0, CONFIG};
use sluice_vfio_user::dma::DmaMap;
use sluice_vfio_user::region::RegionAccess;
use sluice_vfio_user::version::Version;
use sluice_vfio_user::{Command, Errno};
use std::os::fd::BorrowedFd;
use zerocopy::IntoBytes;

/// Bytes of BAR0: registers, doorbells, MSI-X table and pending bits, a page each.
const BAR0_SIZE: usize = 4 * PAGE as usize;
const CONFIG_SIZE: usize = 4096;
const TABLE: usize = 2 * PAGE as usize;
const PENDING: usize = 3 * PAGE as usize;
const TABLE_SIZE: usize = (IO_QUEUES_MAX as usize + 1) * 16;

/// Bytes of memory that queues can be in.
const RAM: usize = 16 * PAGE as usize;

pub fn run(data: &[u8]) {
    run_on_reactor(data, converse);
}

fn converse(local: &mut Local, data: &[u8]) {
    let mut input = Input::new(data);
    let ram = SharedRegion::new("fuzz-ram", RAM).expect("memory");
    let mut bench = Bench::new(Wire::new(local, DoorbellPolicy::Trapped), &ram);
    while !input.is_empty() {
        bench.step(&mut input);
    }
    bench.reset_device();
    bench.check_everything();
    let Bench { wire, client, .. } = bench;
    drop(client);
    wire.finish();
}

/// A client that checks every value it reads.
struct Bench<'a> {
    wire: Wire<'a>,
    client: Client,
    model: Model,
}

impl<'a> Bench<'a> {
    fn new(mut wire: Wire<'a>, ram: &SharedRegion) -> Self {
        let client = wire.connect();
        let mut bench = Self { wire, client, model: Model::default() };
        bench.call(Command::VERSION, Version::OURS.as_bytes(), &[]).expect("agreed");
        let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 0, size: RAM as u64 };
        bench.call(Command::DMA_MAP, map.as_bytes(), &[ram.fd()]).expect("mapped");
        bench.model.bar = bench.read(BAR0, 0, BAR0_SIZE).expect("all of it");
        bench.model.config = bench.read(CONFIG, 0, CONFIG_SIZE).expect("all of it");
        bench.model.after_reset = bench.model.config.clone();
        bench
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=3 => self.write_register(input),
            4 | 5 => self.write_config(input),
            6..=8 => self.write_anything(input),
            9..=12 => self.read_anything(input),
            13 => self.reset_device(),
            14 => drop(self.wire.turn()),
            _ => self.check_everything(),
        }
    }

    /// Sends a command and waits for its reply, within the limit of the controller's turns.
    fn call(&mut self, command: Command, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        let header = self.client.header(command);
        assert!(self.client.send(header, payload, fds), "the server is there");
        for _ in 0..PATIENCE {
            self.wire.deliver();
            self.wire.turn();
            if let Some((reply, payload)) = self.client.receive().expect("a well-behaved client is served") {
                assert_eq!((reply.id, reply.command), (header.id, command));
                // Work that the message began ends with this.
                self.wire.turn();
                return reply.failure().map_or(Ok(payload), Err);
            }
        }
        panic!("{command:?} is never answered");
    }

    fn read(&mut self, region: u32, offset: u64, count: usize) -> Reply {
        let access = RegionAccess { offset, region, count: count as u32 };
        let mut reply = self.call(Command::REGION_READ, access.as_bytes(), &[])?;
        assert_eq!(&reply[..RegionAccess::SIZE], access.as_bytes());
        let data = reply.split_off(RegionAccess::SIZE);
        assert_eq!(data.len(), count);
        Ok(data)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let access = RegionAccess { offset, region, count: data.len() as u32 };
        let reply = self.call(Command::REGION_WRITE, &[access.as_bytes(), data].concat(), &[]);
        match is_inside(region, offset, data.len()) {
            true => assert_eq!(reply.as_deref(), Ok(access.as_bytes())),
            false => return assert_eq!(reply, Err(Errno::INVAL)),
        }
        self.model.write(region, offset as usize, data);
        self.check_status();
    }

    /// Writes a register, as drivers do: whole.
    fn write_register(&mut self, input: &mut Input<'_>) {
        use register::{ACQ, AQA, ASQ, CC, INTMC, INTMS, NSSR};
        let offset = input.pick(&[CC, CC, AQA, ASQ, ACQ, INTMS, INTMC, NSSR]);
        match offset {
            CC => {
                let cc = 6 << 16 | 4 << 20 | u32::from(input.byte()) & 1 | input.dword() & 0x00_00_f8_f0;
                self.write(BAR0, offset.into(), &cc.to_le_bytes());
            }
            ASQ | ACQ => {
                let address = u64::from(input.byte() % 20) * PAGE;
                self.write(BAR0, offset.into(), &address.to_le_bytes());
            }
            // Other values change nothing (Base 3.1.3.11).
            NSSR if input.one_in(2) => {
                self.write(BAR0, offset.into(), &register::SUBSYSTEM_RESET.to_le_bytes())
            }
            _ => self.write(BAR0, offset.into(), &input.dword().to_le_bytes()),
        }
    }

    /// Writes to the capabilities, which contain writable fields.
    fn write_config(&mut self, input: &mut Input<'_>) {
        let offset = input.pick(&[0x04, 0x10, 0x14, 0x3c, 0x44, 0x52, 0x68, 0x69, 0x70, 0x88]);
        let value = input.dword().to_le_bytes();
        let length = input.below(4) + 1;
        self.write(CONFIG, offset, &value[..length]);
    }

    fn write_anything(&mut self, input: &mut Input<'_>) {
        let (region, offset, length) = place(input);
        let mut data = input.bytes(length.min(16)).to_vec();
        data.resize(length, 0x5a);
        self.write(region, offset, &data);
    }

    fn read_anything(&mut self, input: &mut Input<'_>) {
        let (region, offset, length) = place(input);
        match self.read(region, offset, length) {
            Ok(found) => self.model.check(region, offset as usize, &found),
            Err(errno) => assert_eq!((errno, is_inside(region, offset, length)), (Errno::INVAL, false)),
        }
    }

    fn reset_device(&mut self) {
        self.call(Command::DEVICE_RESET, &[], &[]).expect("there is nothing to wait for");
        self.model.reset();
        self.check_status();
    }

    /// Checks that CSTS follows CC (Base 3.1.3.6). CSTS is not part of the model.
    fn check_status(&mut self) {
        let status = self.read(BAR0, register::CSTS.into(), 4).expect("it is there");
        let status = u32::from_le_bytes([status[0], status[1], status[2], status[3]]);
        let is_up = status & (csts::RDY | csts::CFS) != 0;
        assert_eq!(is_up, self.model.is_enabled(), "CSTS is {status:#x}");
    }

    fn check_everything(&mut self) {
        let bar = self.read(BAR0, 0, BAR0_SIZE).expect("all of it");
        self.model.check(BAR0, 0, &bar);
        let config = self.read(CONFIG, 0, CONFIG_SIZE).expect("all of it");
        self.model.check(CONFIG, 0, &config);
    }
}

/// Draws a region, an offset and a length; most of them valid.
fn place(input: &mut Input<'_>) -> (u32, u64, usize) {
    let region = if input.one_in(16) { input.dword() } else { input.pick(&[BAR0, CONFIG]) };
    let page = if region == CONFIG { 0 } else { u64::from(input.byte() & 3) * PAGE };
    let offset = match input.below(8) {
        0 => u64::from(input.u16() & 0xfff),
        1 => input.u64(),
        2 => 0xff0 + u64::from(input.byte() & 0x1f),
        _ => u64::from(input.byte()),
    };
    let length = match input.below(8) {
        0 => usize::from(input.u16() & 0x3fff),
        1 => usize::from(input.byte()),
        _ => input.pick(&[1, 2, 4, 8]),
    };
    (region, page.wrapping_add(offset), length)
}

fn is_inside(region: u32, offset: u64, length: usize) -> bool {
    let size = match region {
        BAR0 => BAR0_SIZE,
        CONFIG => CONFIG_SIZE,
        _ => 0,
    };
    offset.checked_add(length as u64).is_some_and(|end| end <= size as u64)
}

/// Stored values, byte by byte.
#[derive(Default)]
struct Model {
    bar: Vec<u8>,
    config: Vec<u8>,
    /// Initial contents of the configuration space.
    after_reset: Vec<u8>,
}

/// Bits of the configuration space that a host may change: offset and mask of a dword.
const WRITABLE: [(usize, u32); 10] = [
    (0x04, 0x0546),
    (0x0c, 0xff),
    (0x10, !(BAR0_SIZE as u32 - 1)),
    (0x14, u32::MAX),
    (0x3c, 0xff),
    (0x44, 0x3),
    (0x50, 0xc000_0000),
    (0x68, 0x78ff),
    (0x70, 0x0043),
    (0x88, 0x0010),
];

impl Model {
    fn write(&mut self, region: u32, offset: usize, data: &[u8]) {
        if region == CONFIG {
            return self.write_config(offset, data);
        }
        let was_enabled = self.is_enabled();
        // Registers and the table are written up to the end of their page; a register only as a whole.
        let registers = &data[..data.len().min(PAGE as usize - offset.min(PAGE as usize))];
        if offset.is_multiple_of(4) {
            let dwords = registers.as_chunks::<4>().0;
            (offset..).step_by(4).zip(dwords).for_each(|(at, dword)| self.write_register(at, *dword));
        }
        for (at, byte) in (offset..).zip(data).filter(|(at, _)| (TABLE..TABLE + TABLE_SIZE).contains(at)) {
            self.bar[at] = *byte;
        }
        if was_enabled && !self.is_enabled() {
            self.put(register::INTMS, 0);
        }
    }

    fn write_register(&mut self, offset: usize, value: [u8; 4]) {
        const PAGE_MASK: u32 = !0xfff;
        let (offset, value) = (offset as u32, u32::from_le_bytes(value));
        match offset {
            register::INTMS => self.put(offset, self.get(offset) | value),
            register::INTMC => self.put(register::INTMS, self.get(register::INTMS) & !value),
            register::CC => self.put(offset, value),
            register::NSSR if value == register::SUBSYSTEM_RESET => self.reset_registers(),
            // Admin queue properties are fixed while the controller is enabled.
            _ if self.is_enabled() => {}
            register::AQA => self.put(offset, value & 0x0fff_0fff),
            register::ASQ | register::ACQ => self.put(offset, value & PAGE_MASK),
            0x2c | 0x34 => self.put(offset, value),
            _ => {}
        }
    }

    fn get(&self, offset: u32) -> u32 {
        let at = offset as usize;
        u32::from_le_bytes([self.bar[at], self.bar[at + 1], self.bar[at + 2], self.bar[at + 3]])
    }

    fn put(&mut self, offset: u32, value: u32) {
        let mut put = |offset: u32| self.bar[offset as usize..][..4].copy_from_slice(&value.to_le_bytes());
        put(offset);
        // The mask reads the same from INTMS and INTMC.
        if offset == register::INTMS {
            put(register::INTMC);
        }
    }

    fn is_enabled(&self) -> bool {
        self.get(register::CC) & 1 != 0
    }

    fn write_config(&mut self, offset: usize, data: &[u8]) {
        const POWER_STATE: usize = 0x44;
        const INITIATE_FLR: usize = 0x69;
        let mut resets = false;
        for (at, value) in (offset..).zip(data) {
            let dword = WRITABLE.iter().find(|(dword, _)| *dword == at & !3);
            let mask = dword.map_or(0, |(_, mask)| mask.to_le_bytes()[at & 3]);
            let old = self.config[at];
            self.config[at] = old & !mask | value & mask;
            resets |= at == POWER_STATE && old & 3 == 3 && value & 3 == 0;
            resets |= at == INITIATE_FLR && value & 0x80 != 0;
        }
        if resets {
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.config.copy_from_slice(&self.after_reset);
        self.reset_registers();
        self.bar[TABLE..][..TABLE_SIZE].fill(0);
        // Every vector is masked.
        self.bar[TABLE..][..TABLE_SIZE].iter_mut().skip(12).step_by(16).for_each(|byte| *byte = 1);
    }

    /// Resets the registers alone, as an NVM Subsystem Reset does (Base 3.7.1).
    fn reset_registers(&mut self) {
        for offset in [register::CC, register::INTMS, register::AQA] {
            self.put(offset, 0);
        }
        self.bar[register::ASQ as usize..][..16].fill(0);
    }

    /// Checks that the read bytes equal the model, except for bits that change by themselves.
    fn check(&self, region: u32, offset: usize, found: &[u8]) {
        let range = offset..offset + found.len();
        let mut expected = if region == CONFIG { &self.config } else { &self.bar }[range.clone()].to_vec();
        let changing: &[(usize, usize, u8)] = if region == CONFIG { &CHANGING_CONFIG } else { &CHANGING_BAR };
        for &(first, count, mask) in changing {
            for at in (first..first + count).filter(|at| range.contains(at)).map(|at| at - offset) {
                expected[at] = expected[at] & !mask | found[at] & mask;
            }
        }
        if expected != found {
            let differs = |at: &usize| expected[*at] != found[*at];
            let at = (0..found.len()).find(differs).unwrap_or_default();
            let (byte, found, expected) = (offset + at, found[at], expected[at]);
            panic!("byte {byte:#x} of region {region} is {found:#x}, not {expected:#x}");
        }
    }
}

/// Bits that are not stored: first byte, bytes, mask. CSTS and the pending interrupts.
const CHANGING_BAR: [(usize, usize, u8); 3] = [
    (register::CSTS as usize, 4, 0xff),
    (PENDING, TABLE_SIZE / 128, 0xff),
    (PENDING + TABLE_SIZE / 128, 1, 1),
];

/// Level of INTx.
const CHANGING_CONFIG: [(usize, usize, u8); 1] = [(0x06, 1, 1 << 3)];
