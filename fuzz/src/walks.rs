//! PRP lists and SGLs against walkers that are too simple to be wrong: page by page, descriptor by
//! descriptor, each looked up alone.

use crate::guest::{Guest, PAGE, WINDOWS, address, pages};
use crate::{Input, draw};
use sluice_controller::TRANSFER_MAX;
use sluice_memory::{
    Access, MAX_SEGMENTS, MAX_SGL_DESCRIPTORS, MAX_SGL_SEGMENTS, PAGE_SIZE, SegmentList, walk_prp, walk_sgl,
};
use sluice_nvme::{SglDescriptor, SglType, Status};
use zerocopy::FromBytes;

/// Bytes of a transfer: in the file behind the guest's memory, or into a bit bucket.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    at: Option<usize>,
    length: usize,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut guest = Guest::new();
    let missing = if input.one_in(4) { input.byte() } else { 0 };
    for window in 0..WINDOWS.len() {
        let removed = (missing >> window & 1 != 0).then(|| guest.unmap(window));
        drop(removed);
    }
    while !input.is_empty() {
        match input.below(4) {
            0 | 1 => guest.poke(address(&mut input), &draw::structures(&mut input, address)),
            2 => prp(&mut guest, &mut input),
            _ => sgl(&mut guest, &mut input),
        }
    }
}

/// Draws the length of a transfer: up to the limit of a command, and often small.
fn length(input: &mut Input<'_>) -> u32 {
    match input.below(4) {
        0 => u32::from(input.byte()) + 1,
        1 | 2 => u32::from(input.u16()) + 1,
        _ => input.u32() % TRANSFER_MAX + 1,
    }
}

fn access(input: &mut Input<'_>) -> Access {
    input.pick(&[Access::Read, Access::Write])
}

fn prp(guest: &mut Guest, input: &mut Input<'_>) {
    let (prp1, prp2) = (address(input), address(input));
    let (length, access) = (length(input), access(input));
    let mut list = SegmentList::new();
    let walked = walk_prp(&guest.space, prp1, prp2, length, PAGE_SIZE, access, &mut list);
    let naive = NaivePrp { guest, access };
    match naive.walk(prp1, prp2, length as usize) {
        Ok(chunks) => {
            assert_eq!(walked, Ok(()));
            compare(guest, &list, &chunks, access);
        }
        Err(possible) => {
            let status = walked.expect_err("the naive walker found an error");
            assert!(possible.contains(&status), "{status:?}, not one of {possible:?}");
        }
    }
}

struct NaivePrp<'a> {
    guest: &'a Guest,
    access: Access,
}

impl NaivePrp<'_> {
    /// Returns the chunks of a transfer (Base 2.0, 4.1.1), or all of its errors.
    fn walk(&self, prp1: u64, prp2: u64, length: usize) -> Result<Vec<Chunk>, Vec<Status>> {
        let first = length.min((PAGE - prp1 % PAGE) as usize);
        let count = (length - first).div_ceil(PAGE_SIZE);
        let mut found = vec![if prp1.is_multiple_of(4) {
            self.chunk(prp1, first)
        } else {
            Err(Status::PRP_OFFSET_INVALID)
        }];
        for n in 0..count {
            let part = (length - first - n * PAGE_SIZE).min(PAGE_SIZE);
            let entry = if count == 1 { Ok(prp2) } else { self.entry(prp2, n as u64, count as u64) };
            found.push(entry.and_then(|entry| match entry % PAGE {
                0 => self.chunk(entry, part),
                _ => Err(Status::PRP_OFFSET_INVALID),
            }));
        }
        let errors: Vec<Status> = found.iter().filter_map(|found| found.err()).collect();
        if errors.is_empty() { Ok(found.into_iter().flatten().collect()) } else { Err(errors) }
    }

    fn chunk(&self, iova: u64, length: usize) -> Result<Chunk, Status> {
        let at = self.guest.locate(iova, Some(self.access)).ok_or(Status::DATA_TRANSFER_ERROR)?;
        Ok(Chunk { at: Some(at), length })
    }

    /// Returns entry `n` of `count` in the list at `list`: each is searched from the beginning of the chain.
    fn entry(&self, mut list: u64, mut n: u64, mut count: u64) -> Result<u64, Status> {
        loop {
            if !list.is_multiple_of(8) {
                return Err(Status::PRP_OFFSET_INVALID);
            }
            let room = (PAGE - list % PAGE) / 8;
            if count <= room || n < room - 1 {
                return self.read(list + 8 * n);
            }
            list = self.read(list + 8 * (room - 1))?;
            if !list.is_multiple_of(PAGE) {
                return Err(Status::PRP_OFFSET_INVALID);
            }
            (n, count) = (n - (room - 1), count - (room - 1));
        }
    }

    fn read(&self, iova: u64) -> Result<u64, Status> {
        let at = self.guest.locate(iova, Some(Access::Read)).ok_or(Status::DATA_TRANSFER_ERROR)?;
        let (entry, _) =
            u64::read_from_prefix(&self.guest.image()[at..]).map_err(|_| Status::INTERNAL_ERROR)?;
        Ok(entry)
    }
}

fn sgl(guest: &mut Guest, input: &mut Input<'_>) {
    let descriptor = draw::descriptor(input, address);
    let (length, access) = (length(input), access(input));
    let mut list = SegmentList::new();
    let walked = walk_sgl(&guest.space, descriptor.to_dptr(), length, access, &mut list);
    let mut naive = NaiveSgl::new(guest, access, length as usize);
    let wanted = naive.walk(descriptor);
    // A list beyond the limits is refused at once, even if it has other errors; and a walker that reads ahead
    // finds a hole earlier.
    let is_excused = match walked {
        Err(Status::INVALID_SGL_COUNT) => naive.is_beyond_limits(),
        Err(Status::DATA_TRANSFER_ERROR) => naive.has_hole,
        _ => false,
    };
    if is_excused {
        return;
    }
    assert_eq!(walked, wanted);
    if wanted.is_ok() {
        let chunks = naive.chunks;
        compare(guest, &list, &chunks, access);
    }
}

/// Follows an SGL (Base 2.0, 4.1.2).
struct NaiveSgl<'a> {
    guest: &'a Guest,
    access: Access,
    rest: usize,
    chunks: Vec<Chunk>,
    descriptors: usize,
    segments: usize,
    /// Flag that some segment that was begun is not memory from end to end.
    has_hole: bool,
}

impl<'a> NaiveSgl<'a> {
    fn new(guest: &'a Guest, access: Access, rest: usize) -> Self {
        Self { guest, access, rest, chunks: Vec::new(), descriptors: 0, segments: 0, has_hole: false }
    }

    /// Returns whether the limits are nearly reached. The counts of the two walkers (a batch read ahead,
    /// neighbours that are merged) differ by less than this.
    fn is_beyond_limits(&self) -> bool {
        self.descriptors + 16 > MAX_SGL_DESCRIPTORS
            || self.segments >= MAX_SGL_SEGMENTS
            || self.chunks.len() >= MAX_SEGMENTS
    }

    fn walk(&mut self, first: SglDescriptor) -> Result<(), Status> {
        let mut next = Some(first);
        while let Some(descriptor) = next {
            if self.segments > MAX_SGL_SEGMENTS {
                return Err(Status::INVALID_SGL_COUNT);
            }
            next = match descriptor.kind() {
                SglType::SEGMENT | SglType::LAST_SEGMENT => self.segment(descriptor)?,
                _ => self.data(descriptor).map(|()| None)?,
            };
        }
        if self.rest == 0 { Ok(()) } else { Err(Status::SGL_DATA_LENGTH_INVALID) }
    }

    /// Walks the data of a segment; returns the descriptor of the next, if one is needed.
    fn segment(&mut self, pointer: SglDescriptor) -> Result<Option<SglDescriptor>, Status> {
        if pointer.sub_type() != 0 {
            return Err(Status::SGL_TYPE_INVALID);
        }
        if pointer.length == 0 || !pointer.length.is_multiple_of(16) || !pointer.address.is_multiple_of(8) {
            return Err(Status::INVALID_SGL_SEGMENT);
        }
        self.segments += 1;
        let memory = pages(pointer.address, pointer.length as usize);
        let mut there = memory.map(|(iova, _)| self.guest.locate(iova, Some(Access::Read)).is_some());
        let wraps = pointer.address.checked_add(pointer.length.into()).is_none();
        self.has_hole |= wraps || !there.all(|there| there);
        let count = pointer.length / 16;
        for n in 0..count {
            if self.rest == 0 {
                return Ok(None);
            }
            let descriptor = self.read(pointer.address, n)?;
            let is_pointer = [SglType::SEGMENT, SglType::LAST_SEGMENT].contains(&descriptor.kind());
            match is_pointer {
                false => self.data(descriptor)?,
                true if n + 1 < count => return Err(Status::INVALID_SGL_COUNT),
                true if pointer.kind() == SglType::LAST_SEGMENT => return Err(Status::INVALID_SGL_SEGMENT),
                true => return Ok(Some(descriptor)),
            }
        }
        Ok(None)
    }

    /// Reads descriptor `n` of a segment, in two halves: it may lie across two windows.
    fn read(&mut self, segment: u64, n: u32) -> Result<SglDescriptor, Status> {
        self.descriptors += 1;
        if self.descriptors > MAX_SGL_DESCRIPTORS {
            return Err(Status::INVALID_SGL_COUNT);
        }
        let mut bytes = [0; SglDescriptor::SIZE];
        for (half, into) in bytes.chunks_exact_mut(8).enumerate() {
            let iova = segment.checked_add(u64::from(n) * 16 + half as u64 * 8);
            let at = iova.and_then(|iova| self.guest.locate(iova, Some(Access::Read)));
            into.copy_from_slice(&self.guest.image()[at.ok_or(Status::DATA_TRANSFER_ERROR)?..][..8]);
        }
        SglDescriptor::read_from_bytes(&bytes).map_err(|_| Status::INTERNAL_ERROR)
    }

    fn data(&mut self, descriptor: SglDescriptor) -> Result<(), Status> {
        let is_bucket = descriptor.kind() == SglType::BIT_BUCKET;
        if descriptor.sub_type() != 0 || !is_bucket && descriptor.kind() != SglType::DATA_BLOCK {
            return Err(Status::SGL_TYPE_INVALID);
        }
        let taken = self.rest.min(descriptor.length as usize);
        if is_bucket && self.access == Access::Read {
            return Ok(());
        }
        for (iova, part) in pages(descriptor.address, taken) {
            let wraps = iova < descriptor.address;
            let at = self.guest.locate(iova, Some(self.access)).filter(|_| !wraps);
            if !is_bucket && at.is_none() {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            self.chunks.push(Chunk { at: at.filter(|_| !is_bucket), length: part.len() });
        }
        self.rest -= taken;
        Ok(())
    }
}

/// Checks that the segments move the bytes of the chunks, in their order, and no others.
fn compare(guest: &mut Guest, list: &SegmentList, chunks: &[Chunk], access: Access) {
    let length: usize = chunks.iter().map(|chunk| chunk.length).sum();
    assert_eq!(list.len_bytes(), length);
    let mut data: Vec<u8> = (0..length).map(|n| (n ^ n >> 8) as u8 ^ 0x5a).collect();
    let mut done = 0;
    if access == Access::Write {
        assert_eq!(list.copy_from(0, &data), length);
        for chunk in chunks {
            let bytes = &data[done..done + chunk.length];
            chunk.at.into_iter().for_each(|at| guest.expect(at, bytes));
            done += chunk.length;
        }
        assert!(guest.is_as_expected(), "bytes went elsewhere");
    } else {
        assert_eq!(list.copy_to(0, &mut data), length);
        for chunk in chunks {
            let bytes = &data[done..done + chunk.length];
            let expected = chunk.at.map(|at| &guest.image()[at..at + chunk.length]);
            assert!(expected.is_none_or(|expected| expected == bytes), "bytes came from elsewhere");
            done += chunk.length;
        }
    }
}
