//! Data buffers of the simulated host, described by all forms of PRPs and SGLs.

use crate::{Guest, Random};
use sluice_memory::{MAX_SGL_SEGMENTS, PAGE_SIZE};
use sluice_nvme::{SglDescriptor, SglType, SubmissionEntry};
use zerocopy::IntoBytes;

const PAGE: u64 = PAGE_SIZE as u64;

/// Bytes of one entry of a PRP list.
const PRP: u64 = 8;

/// A command's data, scattered over the host's memory.
pub struct Buffer {
    /// Parts of the data, in order.
    spans: Vec<Span>,
    /// All pages taken: data and lists.
    pages: Vec<u64>,
    /// The data pointer, and the PSDT bits with its type.
    dptr: [u64; 2],
    psdt: u8,
    /// Guest addresses of the entries of the PRP list, and the descriptors of the SGL.
    list: Vec<u64>,
    descriptors: Vec<SglDescriptor>,
    /// Contents of the pages when the command was submitted.
    before: Vec<u8>,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:x?}, psdt {:#x}, {:x?})", self.dptr, self.psdt, self.spans)
    }
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Address; none for a bit bucket, whose data is dropped.
    iova: Option<u64>,
    length: u32,
}

/// Direction of the data transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    FromHost,
    ToHost,
}

impl Buffer {
    /// Creates the buffer of a command without data.
    pub fn none() -> Self {
        Self {
            spans: Vec::new(),
            pages: Vec::new(),
            dptr: [0; 2],
            psdt: 0,
            list: Vec::new(),
            descriptors: Vec::new(),
            before: Vec::new(),
        }
    }

    /// Creates a buffer of `length` bytes, described by either kind of pointer.
    pub fn any(guest: &mut Guest, random: &mut Random, length: u32, direction: Direction) -> Self {
        match random.one_in(2) {
            true => Self::prp(guest, random, length),
            false => Self::sgl(guest, random, length, direction),
        }
    }

    /// Creates a buffer described by PRPs (Base 4.1.1): any pages, of which the first may be used from its
    /// middle.
    pub fn prp(guest: &mut Guest, random: &mut Random, length: u32) -> Self {
        let offset = if random.one_in(2) { 0 } else { random.below(PAGE / 4) * 4 };
        let count = (offset + u64::from(length)).div_ceil(PAGE);
        let mut pages: Vec<u64> = (0..count).map(|_| guest.page(random)).collect();
        let mut spans = Vec::new();
        let (mut at, mut left) = (offset, u64::from(length));
        for page in &pages {
            let bytes = left.min(PAGE - at);
            spans.push(Span { iova: Some(page + at), length: bytes as u32 });
            left -= bytes;
            at = 0;
        }
        let mut list = Vec::new();
        let second = match pages[1..] {
            [] => random.next_u64(), // reserved then, and to be ignored
            [second] => second,
            _ => {
                list = prp_list(guest, random, &mut pages);
                list[0]
            }
        };
        let dptr = [pages[0] + offset, second];
        Self { spans, pages, dptr, list, ..Self::none() }
    }

    /// Creates a buffer described by an SGL (Base 4.1.2): parts of any length at any address, bit buckets
    /// between them.
    pub fn sgl(guest: &mut Guest, random: &mut Random, length: u32, direction: Direction) -> Self {
        let mut pages = Vec::new();
        let mut descriptors = Vec::new();
        let mut spans = Vec::new();
        let mut left = length;
        while left > 0 {
            let bytes = span_length(random, left);
            let span = match random.one_in(8) {
                true => Span { iova: None, length: bytes },
                false => Span { iova: Some(place(guest, random, bytes, &mut pages)), length: bytes },
            };
            descriptors.push(descriptor(span));
            // A bit bucket in a source buffer has no data.
            if span.iova.is_some() || direction == Direction::ToHost {
                spans.push(span);
                left -= bytes;
            }
        }
        let dptr = match descriptors[..] {
            [only] if random.one_in(2) => only,
            _ => segments(guest, random, &descriptors, &mut pages),
        };
        let psdt = if random.one_in(2) { 0x40 } else { 0x80 };
        Self { spans, pages, dptr: dptr.to_dptr(), psdt, descriptors, ..Self::none() }
    }

    /// Writes the data pointer into an entry.
    pub fn describe(&self, entry: &mut SubmissionEntry) {
        entry.dptr = self.dptr;
        entry.flags = entry.flags & 0x3f | self.psdt;
    }

    /// Returns the number of pages that the PRPs name; none for an SGL or a command without data.
    pub(crate) fn prp_pages(&self) -> Option<usize> {
        (self.psdt == 0 && !self.spans.is_empty()).then_some(self.spans.len())
    }

    pub(crate) fn dptr_mut(&mut self) -> &mut [u64; 2] {
        &mut self.dptr
    }

    /// Returns the guest addresses of the entries of the PRP list, if there is one.
    pub(crate) fn prp_list(&self) -> &[u64] {
        &self.list
    }

    /// Returns the SGL's data descriptors; none if the buffer has no SGL.
    pub(crate) fn descriptors(&self) -> &[SglDescriptor] {
        &self.descriptors
    }

    /// Describes the buffer by any other descriptors. Returns the pointer to the first segment, which is the
    /// new data pointer.
    pub(crate) fn describe_by(
        &mut self,
        guest: &mut Guest,
        random: &mut Random,
        descriptors: &[SglDescriptor],
    ) -> SglDescriptor {
        let pointer = segments(guest, random, descriptors, &mut self.pages);
        self.dptr = pointer.to_dptr();
        pointer
    }

    /// Returns the parts of `length` bytes from `offset` on.
    fn spans(&self, offset: usize, length: usize) -> impl Iterator<Item = Span> {
        let (mut skip, mut left) = (offset as u32, length as u32);
        self.spans.iter().filter_map(move |span| {
            let skipped = skip.min(span.length);
            skip -= skipped;
            let length = left.min(span.length - skipped);
            left -= length;
            let iova = span.iova.map(|iova| iova + u64::from(skipped));
            (length > 0).then_some(Span { iova, length })
        })
    }

    /// Writes `data` into the buffer from byte `offset` on.
    pub fn write(&self, guest: &Guest, offset: usize, data: &[u8]) {
        let mut at = 0;
        for span in self.spans(offset, data.len()) {
            let next = at + span.length as usize;
            if let Some(iova) = span.iova {
                guest.write(iova, &data[at..next]);
            }
            at = next;
        }
    }

    /// Reads the buffer from byte `offset` on; returns false if a part of the data went into a bit bucket.
    pub fn read(&self, guest: &Guest, offset: usize, into: &mut [u8]) -> bool {
        let mut at = 0;
        for span in self.spans(offset, into.len()) {
            let next = at + span.length as usize;
            let Some(iova) = span.iova else { return false };
            guest.read(iova, &mut into[at..next]);
            at = next;
        }
        at == into.len()
    }

    /// Stores the contents of the pages, now that the command is submitted.
    pub fn seal(&mut self, guest: &Guest) {
        self.before = self.contents(guest);
    }

    /// Checks a finished command: nothing but the data of a read may have changed. A failed read may have
    /// changed its data or not. Gives the pages back.
    pub fn check_and_release(self, guest: &mut Guest, direction: Direction) {
        let mut after = self.contents(guest);
        if direction == Direction::ToHost {
            self.copy_data(&mut after);
        }
        if after != self.before {
            let differs = |(after, before): (&u8, &u8)| after != before;
            let at = after.iter().zip(&self.before).position(differs).unwrap_or(0);
            let page = self.pages[at / PAGE_SIZE];
            panic!("the controller wrote to {:#x}, outside of the data", page + (at % PAGE_SIZE) as u64);
        }
        guest.release(self.pages);
    }

    /// Restores the data itself in a copy of the pages.
    fn copy_data(&self, after: &mut [u8]) {
        for span in &self.spans {
            let Some(start) = span.iova else { continue };
            let end = start + u64::from(span.length);
            for (page, at) in self.pages.iter().zip((0..).step_by(PAGE_SIZE)) {
                let (from, to) = (start.max(*page), end.min(page + PAGE));
                if from < to {
                    let bytes = at + (from - page) as usize..at + (to - page) as usize;
                    after[bytes.clone()].copy_from_slice(&self.before[bytes]);
                }
            }
        }
    }

    fn contents(&self, guest: &Guest) -> Vec<u8> {
        let mut all = vec![0; self.pages.len() * PAGE_SIZE];
        for (page, bytes) in self.pages.iter().zip(all.chunks_mut(PAGE_SIZE)) {
            guest.read(*page, bytes);
        }
        all
    }
}

/// Writes the list of all pages but the first; returns the address of each entry. The list may begin anywhere
/// in a page; the last entry of a page names the next one while there are more.
fn prp_list(guest: &mut Guest, random: &mut Random, pages: &mut Vec<u64>) -> Vec<u64> {
    let entries: Vec<u64> = pages[1..].to_vec();
    let mut list = guest.page(random);
    pages.push(list);
    // Near the end of the page as often as not, so that short lists are chained too.
    let room = if random.one_in(2) { PAGE / PRP } else { 8 };
    list += PAGE - PRP * random.between(2, room);
    let mut places = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let is_last_of_page = (list + PRP).is_multiple_of(PAGE);
        if is_last_of_page && number + 1 < entries.len() {
            let next = guest.page(random);
            pages.push(next);
            guest.write(list, &next.to_le_bytes());
            list = next;
        }
        guest.write(list, &entry.to_le_bytes());
        places.push(list);
        list += PRP;
    }
    places
}

/// Returns a length: long for long transfers, so that the number of descriptors stays in bounds.
fn span_length(random: &mut Random, left: u32) -> u32 {
    let most = (left / 8).clamp(512, 3 * PAGE_SIZE as u32).min(left);
    match random.below(3) {
        0 => left.min(4 * PAGE_SIZE as u32),
        1 => random.between(1, u64::from(most)) as u32,
        _ => most,
    }
}

/// Takes memory for a part, at any address in the pages taken for it.
fn place(guest: &mut Guest, random: &mut Random, length: u32, pages: &mut Vec<u64>) -> u64 {
    let count = u64::from(length).div_ceil(PAGE);
    let first = guest.pages(count, random);
    pages.extend((0..count).map(|page| first + page * PAGE));
    first + random.below(count * PAGE - u64::from(length) + 1)
}

fn descriptor(span: Span) -> SglDescriptor {
    match span.iova {
        Some(iova) => SglDescriptor::new(SglType::DATA_BLOCK, iova, span.length),
        None => SglDescriptor::new(SglType::BIT_BUCKET, 0, span.length),
    }
}

/// Writes the descriptors as a chain of segments; returns the descriptor of the first.
fn segments(
    guest: &mut Guest,
    random: &mut Random,
    descriptors: &[SglDescriptor],
    pages: &mut Vec<u64>,
) -> SglDescriptor {
    // Controllers follow this many segments and no more.
    let fewest = descriptors.len().div_ceil(MAX_SGL_SEGMENTS) as u64;
    let per_segment = random.between(fewest, 40) as usize;
    let mut next: Option<SglDescriptor> = None;
    for chunk in descriptors.chunks(per_segment).rev() {
        let chunk: Vec<SglDescriptor> = chunk.iter().copied().chain(next).collect();
        let bytes = chunk.as_bytes();
        let page = guest.page(random);
        pages.push(page);
        let address = page + random.below((PAGE - bytes.len() as u64) / 8 + 1) * 8;
        guest.write(address, bytes);
        let kind = if next.is_some() { SglType::SEGMENT } else { SglType::LAST_SEGMENT };
        next = Some(SglDescriptor::new(kind, address, bytes.len() as u32));
    }
    next.expect("an SGL has a descriptor")
}
