//! vfio-user messages: well-formed and otherwise, with descriptors of every kind, in any order, from
//! successive clients, to an endpoint around a live controller.

use crate::dma_maps::DmaMaps;
use crate::far::Far;
use crate::files::{Files, Kind, RAM_PAGES};
use crate::wire::{Client, PATIENCE, RingEvent, Wire, run_on_reactor};
use crate::{Input, draw};
use sluice_frontend_vfio_user::DoorbellPolicy;
use sluice_nvme::{SubmissionEntry, register};
use sluice_reactor::Local;
use sluice_vfio_user::device::region::{BAR0, CONFIG};
use sluice_vfio_user::device::{DeviceInfo, RegionInfo};
use sluice_vfio_user::dma::{DmaMap, DmaUnmap};
use sluice_vfio_user::irq::{IrqInfo, IrqSet};
use sluice_vfio_user::region::RegionAccess;
use sluice_vfio_user::version::{Capabilities, Version};
use sluice_vfio_user::{Command, Header};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::{FromBytes, IntoBytes};

const PAGE: u64 = sluice_memory::PAGE_SIZE as u64;

/// First address of the guest's memory for the device when it is mapped as a whole.
const RAM_AT: u64 = 1 << 20;

/// Steps of one run, so that it stays short.
const STEPS_MAX: usize = 400;

pub fn run(data: &[u8]) {
    run_on_reactor(data, converse);
}

fn converse(local: &mut Local, data: &[u8]) {
    thread_local!(static FILES: Files = Files::new());
    FILES.with(|files| {
        let mut input = Input::new(data);
        let policy = input.pick(&[DoorbellPolicy::Auto, DoorbellPolicy::Trapped, DoorbellPolicy::Mapped]);
        let mut conversation = Conversation::new(Wire::new(local, policy), files);
        conversation.send_version(&mut input);
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            conversation.step(&mut input);
        }
        conversation.finish();
    });
}

/// A message that was sent and not answered.
struct Sent {
    header: Header,
    payload: Vec<u8>,
    /// Flag that the message carried the guest's memory.
    has_ram: bool,
}

/// A conversation.
struct Conversation<'a> {
    wire: Wire<'a>,
    files: &'a Files,
    client: Client,
    /// Messages with an outstanding reply, in the order they were sent.
    unanswered: VecDeque<Sent>,
    /// Flag that the server sees exactly the messages that were sent.
    is_in_step: bool,
    /// Flag that the server has not closed the connection.
    is_open: bool,
    dma_maps: DmaMaps<'a>,
    /// Memory that the server reaches by DMA messages only.
    far: Far,
}

impl<'a> Conversation<'a> {
    fn new(mut wire: Wire<'a>, files: &'a Files) -> Self {
        files.resize_shrinking(8);
        let client = wire.connect();
        let (unanswered, dma_maps) = (VecDeque::new(), DmaMaps::new(&files.ram));
        let far = Far::new(RAM_AT, RAM_PAGES * PAGE as usize);
        Self { wire, files, client, unanswered, is_in_step: true, is_open: true, dma_maps, far }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..112 => self.send_any(input),
            112..144 => {
                self.wire.deliver();
                self.wire.turn();
            }
            144..168 => self.receive(),
            168..180 => drop(self.wire.answer()),
            180..184 => self.boot(&[Kind::Ram]),
            184..188 => self.boot(&[]),
            188..204 => self.submit(input),
            204..212 => self.wire.keeper.pattern.store(input.u32(), Relaxed),
            212..216 => self.files.resize_shrinking(u64::from(input.byte()) % 10),
            216..222 => self.send_garbage(input),
            222..226 => self.stray_event(input),
            226..230 => self.connect_second(),
            230..236 => self.start_anew(input),
            236..240 => self.wire.wait(1 << (input.byte() & 0x3f)),
            240..248 => self.answer_dma(input),
            _ => drop(self.wire.arm()),
        }
    }

    // Messages to the server

    /// Sends VERSION, of one kind or another; nothing works without.
    fn send_version(&mut self, input: &mut Input<'_>) {
        let json = match input.below(8) {
            0 => input.bytes(16).to_vec(),
            1 => b"{}\0".to_vec(),
            2 => Vec::new(),
            3 => return,
            _ => Capabilities { write_multiple: true, ..Capabilities::ours() }.to_json(),
        };
        let payload = [Version::OURS.as_bytes(), &json].concat();
        self.send(Command::VERSION, 0, payload, &[]);
    }

    fn send_any(&mut self, input: &mut Input<'_>) {
        let (command, mut payload) = message(input);
        let mut kinds = Vec::new();
        let right = match command {
            Command::DMA_MAP => Some(Kind::Ram),
            Command::DEVICE_SET_IRQS => Some(Kind::Eventfd),
            _ => None,
        };
        if let Some(kind) = right.filter(|_| !input.one_in(8)) {
            kinds.push(kind);
        }
        if input.one_in(8) {
            let count = input.below(sluice_vfio_user::MAX_MESSAGE_FDS);
            kinds.extend((0..count).map(|_| kind(input)));
        }
        match input.byte() {
            0..8 => payload.truncate(input.below(40)),
            8..12 => payload.extend(input.bytes(8)),
            _ => {}
        }
        let flags = match input.below(16) {
            0 => input.dword(),
            1 | 2 => Header::NO_REPLY,
            _ => 0,
        };
        self.send(command, flags, payload, &kinds);
    }

    fn send(&mut self, command: Command, flags: u32, payload: Vec<u8>, kinds: &[Kind]) {
        let header = Header { flags, ..self.client.header(command) };
        let fds: Vec<BorrowedFd<'_>> = kinds.iter().map(|kind| self.files.get(*kind)).collect();
        let has_ram = kinds == [Kind::Ram];
        let is_map = |sent: &Sent| sent.header.command == Command::DMA_MAP;
        if command == Command::DMA_MAP && !self.unanswered.iter().any(is_map) {
            // From here on the device may write to it, whenever the reply arrives.
            self.dma_maps.check();
        }
        if !self.client.send(header, &payload, &fds) {
            self.is_in_step = false;
            return self.dma_maps.lose_track();
        }
        if header.is_command() && !header.no_reply() {
            self.unanswered.push_back(Sent { header, payload, has_ram });
        } else if command == Command::DMA_MAP || command == Command::DMA_UNMAP {
            // The result will not be reported.
            self.dma_maps.lose_track();
        }
    }

    /// Sends bytes that are no message, or look like one.
    fn send_garbage(&mut self, input: &mut Input<'_>) {
        let count = input.below(64);
        let bytes = input.bytes(count);
        self.client.flush();
        self.client.send_raw(bytes);
        self.is_in_step &= bytes.is_empty();
        if !self.is_in_step {
            self.dma_maps.lose_track();
        }
    }

    /// Answers the oldest request of the server, rightly or not.
    fn answer_dma(&mut self, input: &mut Input<'_>) {
        let Some((header, payload)) = self.far.answer(input) else { return };
        if !self.client.send(header, &payload, &[]) || !self.far.is_valid {
            self.is_in_step = false;
            self.dma_maps.lose_track();
        }
    }

    /// Maps the guest's memory, or memory without a descriptor, and enables the controller with its queues in
    /// there.
    fn boot(&mut self, kinds: &[Kind]) {
        let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: RAM_AT, size: RAM_PAGES as u64 * PAGE };
        self.send(Command::DMA_MAP, 0, map.as_bytes().to_vec(), kinds);
        self.poke(0, &[0; 3 * PAGE as usize]);
        for (offset, value) in [
            (register::CC, 0),
            (register::AQA, 0x003f_003f),
            (register::ASQ, RAM_AT),
            (register::ACQ, RAM_AT + PAGE),
            (register::CC, 1 | 6 << 16 | 4 << 20),
        ] {
            let value = &value.to_le_bytes()
                [..if offset == register::ASQ || offset == register::ACQ { 8 } else { 4 }];
            self.send(Command::REGION_WRITE, 0, write_payload(BAR0, offset.into(), value), &[]);
        }
    }

    /// Puts an entry somewhere into a queue, and rings some doorbell.
    fn submit(&mut self, input: &mut Input<'_>) {
        let (queue, slot) = (input.below(4), input.below(64));
        let entry = draw::entry(input, queue == 0, ram_address);
        let at = if queue == 0 { 0 } else { (1 + 2 * queue) * PAGE as usize } + slot * SubmissionEntry::SIZE;
        self.poke(at, entry.as_bytes());
        let offset = u64::from(register::DOORBELLS) + queue as u64 * 8 + u64::from(input.one_in(8)) * 4;
        let value = (slot as u32 + 1) % 64;
        let payload = write_payload(BAR0, offset, &value.to_le_bytes());
        self.send(Command::REGION_WRITE, Header::NO_REPLY, payload, &[]);
    }

    /// Writes memory of both kinds.
    fn poke(&mut self, at: usize, bytes: &[u8]) {
        self.dma_maps.poke(at, bytes);
        self.far.poke(at, bytes);
    }

    fn stray_event(&mut self, input: &mut Input<'_>) {
        let result = input.pick(&[1, 4, 0, -32, -125, 0x19]);
        let epoch = u32::from(input.byte()) & 3;
        match input.below(8) {
            0 => self.wire.send_event(RingEvent::Listener, epoch, result, false),
            1 => self.wire.send_event(RingEvent::Message, epoch, result, false),
            2 => self.wire.send_event(RingEvent::Room, epoch, result, false),
            3 => self.wire.send_event(RingEvent::Unmask, epoch, result, true),
            4 => drop(self.wire.keeper.stale().map(|token| self.wire.event(token, 0))),
            _ => self
                .wire
                .event(u64::from(input.u32()) | u64::from(input.byte() & 0xf) << 40 | 1 << 32, result),
        }
    }

    // Replies

    /// Takes every reply that has arrived. Replies come in the order of the messages.
    fn receive(&mut self) {
        self.client.flush();
        while self.is_open {
            match self.client.receive() {
                Ok(Some((header, payload))) if header.is_command() => self.far.requested(header, &payload),
                Ok(Some((header, payload))) if self.is_in_step => self.answered(&header, &payload),
                Ok(Some((header, _))) => assert!(header.is_reply()),
                Ok(None) => return,
                Err(_) => self.is_open = false,
            }
        }
    }

    fn answered(&mut self, reply: &Header, payload: &[u8]) {
        let Some(sent) = self.unanswered.pop_front() else { panic!("a reply to nothing: {reply:?}") };
        assert!(reply.is_reply(), "{reply:?}");
        assert_eq!((reply.id, reply.command), (sent.header.id, sent.header.command));
        if reply.failure().is_some() {
            return assert!(payload.is_empty(), "an error carries nothing");
        }
        match reply.command {
            Command::DMA_MAP if sent.has_ram => {
                if let Ok((map, _)) = DmaMap::read_from_prefix(&sent.payload) {
                    self.dma_maps.map(map.address, map.offset, map.size);
                }
            }
            Command::DMA_UNMAP => {
                if let Ok((unmap, _)) = DmaUnmap::read_from_prefix(payload) {
                    self.dma_maps.unmap(
                        unmap.address,
                        if unmap.flags == DmaUnmap::ALL { u64::MAX } else { unmap.size },
                    );
                }
            }
            Command::REGION_READ => {
                let (access, data) = RegionAccess::read_from_prefix(payload).expect("the access, and data");
                assert_eq!(access.count as usize, data.len());
            }
            _ => {}
        }
    }

    // Coming and going

    /// Checks that a second client is refused while there is a first.
    fn connect_second(&mut self) {
        let before = self.wire.status();
        if !before.connected {
            return;
        }
        let second = self.wire.connect();
        let counters = self.wire.status().counters;
        assert_eq!(counters.clients, before.counters.clients);
        assert_eq!(counters.turned_away, before.counters.turned_away + 1);
        drop(second);
    }

    /// Replaces the client, at any moment.
    fn start_anew(&mut self, input: &mut Input<'_>) {
        self.leave();
        self.send_version(input);
    }

    fn leave(&mut self) {
        self.receive();
        let is_about_memory =
            |sent: &Sent| [Command::DMA_MAP, Command::DMA_UNMAP].contains(&sent.header.command);
        if self.unanswered.iter().any(is_about_memory) {
            self.dma_maps.lose_track();
        }
        // The connection ends when its client is replaced, and the next client can only connect after it.
        let (first, second) = std::os::unix::net::UnixStream::pair().expect("sockets");
        self.client = Client::over(first);
        drop(second);
        self.wire.close_client();
        self.dma_maps.unmap_all();
        self.client = self.wire.connect();
        self.unanswered.clear();
        self.far.forget();
        (self.is_in_step, self.is_open) = (true, true);
    }

    /// Ends a run: every valid message is answered, and a later client is served.
    fn finish(mut self) {
        self.wire.keeper.pattern.store(0, Relaxed);
        for _ in 0..PATIENCE {
            self.wire.deliver();
            while self.wire.answer() {}
            let before = self.unanswered.len();
            let work = self.wire.turn();
            self.receive();
            let requested = self.far.has_requests();
            while self.is_open && self.far.has_requests() {
                // At the end of the input every decision is the first: the answer is right.
                self.answer_dma(&mut Input::new(&[]));
            }
            if work == 0 && !requested && self.unanswered.len() == before && !self.wire.pass_time() {
                break;
            }
        }
        let is_answered = self.unanswered.is_empty() || !self.is_in_step || !self.is_open;
        assert!(is_answered, "never answered: {:?}", self.unanswered.front().map(|sent| sent.header));
        self.leave();
        self.dma_maps.check();
        self.send(Command::VERSION, 0, Version::OURS.as_bytes().to_vec(), &[]);
        let read = RegionAccess { offset: register::VS.into(), region: BAR0, count: 4 };
        self.send(Command::REGION_READ, 0, read.as_bytes().to_vec(), &[]);
        self.wire.deliver();
        self.wire.turn();
        self.receive();
        assert!(self.unanswered.is_empty() && self.is_open, "a new client is not served");
        let Self { wire, client, .. } = self;
        drop(client);
        wire.finish();
    }
}

fn write_payload(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let access = RegionAccess { offset, region, count: data.len() as u32 };
    [access.as_bytes(), data].concat()
}

/// Draws an address in the guest's memory, or near it.
fn ram_address(input: &mut Input<'_>) -> u64 {
    match input.below(8) {
        0 => input.u64(),
        1 => RAM_AT.wrapping_add(u64::from(input.u16()) * 4),
        _ => RAM_AT + u64::from(input.byte()) % (RAM_PAGES as u64 + 1) * PAGE,
    }
}

fn kind(input: &mut Input<'_>) -> Kind {
    match input.below(8) {
        0 | 1 => Kind::Ram,
        2 | 3 => Kind::Eventfd,
        4 => Kind::Shrinking,
        _ => Kind::Other(input.below(Files::OTHERS)),
    }
}

/// Draws a number of pages in bytes, mostly.
fn size(input: &mut Input<'_>) -> u64 {
    match input.below(8) {
        0 => input.u64(),
        1 => input.dword().into(),
        _ => u64::from(input.byte()) % 40 * PAGE,
    }
}

/// Draws a message of some kind, whose fields are mostly valid.
fn message(input: &mut Input<'_>) -> (Command, Vec<u8>) {
    let argsz =
        |input: &mut Input<'_>, size: usize| if input.one_in(16) { input.dword() } else { size as u32 };
    match input.below(20) {
        0..=3 => {
            let (argsz, flags) =
                (argsz(input, DmaMap::SIZE), if input.one_in(8) { input.dword() } else { 3 });
            let (offset, address, size) = (size(input), ram_address(input), size(input));
            (Command::DMA_MAP, DmaMap { argsz, flags, offset, address, size }.as_bytes().to_vec())
        }
        4..=6 => {
            let argsz = argsz(input, DmaUnmap::SIZE);
            let (flags, address, size) = match input.below(8) {
                0 => (input.dword(), ram_address(input), size(input)),
                1 => (DmaUnmap::ALL, 0, 0),
                2 | 3 => (0, RAM_AT, RAM_PAGES as u64 * PAGE),
                _ => (0, ram_address(input), size(input)),
            };
            (Command::DMA_UNMAP, DmaUnmap { argsz, flags, address, size }.as_bytes().to_vec())
        }
        7 => {
            let info = DeviceInfo { argsz: argsz(input, DeviceInfo::SIZE), ..DeviceInfo::default() };
            (Command::DEVICE_GET_INFO, info.as_bytes().to_vec())
        }
        8 => {
            let (argsz, index) = (argsz(input, 64), input.byte().into());
            let info = RegionInfo { argsz, index, ..RegionInfo::default() };
            (Command::DEVICE_GET_REGION_INFO, info.as_bytes().to_vec())
        }
        9 => {
            let (argsz, index) = (argsz(input, IrqInfo::SIZE), u32::from(input.byte()) & 7);
            let info = IrqInfo { argsz, index, ..IrqInfo::default() };
            let command = input.pick(&[Command::DEVICE_GET_IRQ_INFO, Command::DEVICE_GET_REGION_IO_FDS]);
            (command, info.as_bytes().to_vec())
        }
        10..=12 => (Command::DEVICE_SET_IRQS, set_irqs(input)),
        13 => (Command::REGION_READ, access(input).as_bytes().to_vec()),
        14..=16 => {
            let RegionAccess { offset, region, count } = access(input);
            let mut data = input.bytes(16).to_vec();
            data.resize(count as usize & 0x3fff, 0);
            (Command::REGION_WRITE, write_payload(region, offset, &data))
        }
        17 => (Command::REGION_WRITE_MULTI, write_multi(input)),
        18 => (Command::DEVICE_RESET, Vec::new()),
        _ => (Command(input.u16() & 0x1f), input.bytes(32).to_vec()),
    }
}

fn set_irqs(input: &mut Input<'_>) -> Vec<u8> {
    let flags = match input.below(8) {
        0 => input.dword(),
        1..=4 => IrqSet::DATA_EVENTFD | IrqSet::ACTION_TRIGGER,
        5 => IrqSet::DATA_EVENTFD | IrqSet::ACTION_UNMASK,
        6 => IrqSet::DATA_BOOL | input.pick(&[IrqSet::ACTION_TRIGGER, IrqSet::ACTION_MASK]),
        _ => IrqSet::DATA_NONE | input.pick(&[IrqSet::ACTION_TRIGGER, IrqSet::ACTION_UNMASK]),
    };
    let index = input.pick(&[0, 2, 2, 2, 1, 3, 4, 5]);
    let start = if input.one_in(4) { input.dword() } else { 0 };
    let count = if input.one_in(4) { input.dword() } else { 1 };
    let set = IrqSet { argsz: IrqSet::SIZE as u32, flags, index, start, count };
    [set.as_bytes(), input.bytes((count as usize).min(8))].concat()
}

fn access(input: &mut Input<'_>) -> RegionAccess {
    let region = if input.one_in(16) { input.dword() } else { input.pick(&[BAR0, BAR0, CONFIG]) };
    let offset = match input.below(8) {
        0 => input.u64(),
        1 => input.u16().into(),
        2 => register::CC.into(),
        _ => u64::from(input.byte() & 3) * PAGE + u64::from(input.byte()),
    };
    let count = match input.below(8) {
        0 => input.dword(),
        1 => 0x4000,
        _ => input.pick(&[1, 2, 4, 8]),
    };
    RegionAccess { offset, region, count }
}

fn write_multi(input: &mut Input<'_>) -> Vec<u8> {
    let count = input.below(4) as u64;
    let claimed = if input.one_in(8) { input.u64() } else { count };
    let mut payload = claimed.to_le_bytes().to_vec();
    for _ in 0..count {
        let access = access(input);
        payload.extend(RegionAccess { count: access.count & 0xf, ..access }.as_bytes());
        payload.extend(input.u64().to_le_bytes());
    }
    payload
}
