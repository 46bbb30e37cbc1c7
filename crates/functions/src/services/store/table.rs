//! Mapping from chunks of the drive to chunks of the store, now and in every version.
//!
//! Time is counted in epochs: one ends with each version. A chunk of the store belongs to a chunk of the
//! drive from the epoch in which it was written ("born") to the one in which another replaced it ("died"). A
//! version sees the chunks that lived at the end of its epoch. So a version is a number, however large the
//! drive is. Memory is bounded by the store: 8 bytes for each chunk of the drive, 4 for each of the store,
//! and 16 for each that only versions see.

use super::block::number_32;
use super::text::{NAME_MAX, is_name};
use super::uses::Uses;

/// Most versions of a drive.
pub(crate) const VERSIONS_MAX: usize = 128;

/// Value of `died` of a live mapping.
const NOW: u32 = u32::MAX;

/// Frozen state of the drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) name: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Epoch at whose end the drive had this state.
    pub(crate) epoch: u32,
}

impl Version {
    /// Bytes of epoch, length of the name, time of creation, name.
    pub(crate) const BYTES: usize = 16 + NAME_MAX;

    pub(crate) fn put(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.name.len() as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.created.to_le_bytes());
        bytes[16..16 + self.name.len()].copy_from_slice(self.name.as_bytes());
    }

    /// Parses a version. Returns none if the bytes are none.
    pub(crate) fn get(bytes: &[u8]) -> Option<Self> {
        let (epoch, length) = (number_32(bytes, 0), number_32(bytes, 4) as usize);
        let created = super::block::number(bytes, 8);
        let name = bytes.get(16..)?.get(..length)?;
        let name = str::from_utf8(name).ok().filter(|name| is_name(name))?.to_owned();
        Some(Self { name, created, epoch })
    }
}

/// Chunk of the store, and the chunk of the drive that it is or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mapping {
    pub(crate) logical: u32,
    pub(crate) born: u32,
    pub(crate) died: u32,
    pub(crate) physical: u32,
}

impl Mapping {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn put(&self, bytes: &mut [u8]) {
        let words = [self.logical, self.physical, self.born, self.died];
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    pub(crate) fn get(bytes: &[u8]) -> Self {
        let [logical, physical, born, died] = [0, 4, 8, 12].map(|at| number_32(bytes, at));
        Self { logical, born, died, physical }
    }

    fn is_seen_at(&self, epoch: u32) -> bool {
        self.born <= epoch && epoch < self.died
    }
}

/// Reason why an operation is not possible, or why data cannot be valid.
pub(crate) type Refusal = String;

/// All mappings of a drive.
#[derive(Debug)]
pub(crate) struct Table {
    /// Chunk of the store plus one, or zero, by chunk of the drive.
    now: Vec<u32>,
    /// Epoch of its beginning, by chunk of the drive.
    born: Vec<u32>,
    /// Mappings that died, but are seen by a version.
    past: Vec<Mapping>,
    uses: Uses,
    /// Versions in order of their epochs.
    versions: Vec<Version>,
    epoch: u32,
    deletions: u64,
    /// Chunks of the drive that are mapped.
    mapped: u64,
    /// Chunk at which the search for a free one begins.
    next: u32,
    mappings_max: u64,
    /// Past mappings that were visited since the last deletion; none if no version sees each of them no more.
    swept: Option<usize>,
    /// Past mappings that deletions visited at once, while the log was read.
    visited: u64,
}

impl Table {
    /// Creates the table of a new drive.
    pub(crate) fn new(logical: u32, physical: u32, mappings_max: u64) -> Self {
        Self {
            now: vec![0; logical as usize],
            born: vec![0; logical as usize],
            past: Vec::new(),
            uses: Uses::new(physical),
            versions: Vec::new(),
            epoch: 1,
            deletions: 0,
            mapped: 0,
            next: 0,
            mappings_max,
            swept: None,
            visited: 0,
        }
    }

    /// Makes the table that of a reader, which allocates nothing: the writer of the store may use more
    /// chunks.
    pub(crate) fn only_read(self) -> Self {
        Self { uses: self.uses.only_read(), ..self }
    }

    /// Notes that the store has become larger.
    pub(crate) fn grow(&mut self, physical: u32) {
        self.uses.grow(physical);
    }

    /// Returns the chunk of the store of a chunk of the drive.
    pub(crate) fn lookup(&self, logical: u32) -> Option<u32> {
        self.now.get(logical as usize)?.checked_sub(1)
    }

    /// Returns whether a mapped chunk belongs to nothing else: it is written in place.
    pub(crate) fn is_own(&self, logical: u32) -> bool {
        self.lookup(logical).is_some_and(|physical| {
            self.born[logical as usize] > self.newest() && self.uses.of(physical) == Some(1)
        })
    }

    /// Returns whether a mapped chunk may be [own](Self::is_own) when [`sweep`](Self::sweep) has visited all
    /// past mappings. Until then, it is neither written in place nor replaced: a replay of the log, which
    /// sweeps at once, has it as own.
    pub(crate) fn may_become_own(&self, logical: u32) -> bool {
        let is_new = self.born.get(logical as usize).is_some_and(|born| *born > self.newest());
        is_new && self.unswept() > 0 && self.lookup(logical).is_some() && !self.is_own(logical)
    }

    /// Returns the epoch of the newest version; zero if there is none.
    fn newest(&self) -> u32 {
        self.versions.last().map_or(0, |version| version.epoch)
    }

    /// Takes a free chunk. Returns none if there is none, or no room to note it.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        if self.room().1 == 0 {
            return None;
        }
        let chunk = self.uses.next_free(self.next)?;
        self.next = chunk;
        self.uses.take(chunk);
        Some(chunk)
    }

    /// Gives back a chunk that was allocated in vain.
    pub(crate) fn release(&mut self, physical: u32) {
        self.uses.release(physical);
    }

    /// Maps a chunk of the drive to an [allocated](Self::allocate) one of the store, or to zeros.
    pub(crate) fn put(&mut self, logical: u32, physical: Option<u32>) {
        if let Some(before) = self.lookup(logical) {
            let born = self.born[logical as usize];
            self.mapped -= 1;
            match born <= self.newest() {
                true => self.past.push(Mapping { logical, born, died: self.epoch, physical: before }),
                false => self.release(before),
            }
        }
        self.now[logical as usize] = physical.map_or(0, |physical| physical + 1);
        self.born[logical as usize] = self.epoch;
        self.mapped += u64::from(physical.is_some());
    }

    /// Freezes the drive as it is.
    pub(crate) fn create(&mut self, name: &str, created: u64) -> Result<(), Refusal> {
        self.may_create(name)?;
        self.versions.push(Version { name: name.to_owned(), created, epoch: self.epoch });
        self.epoch += 1;
        Ok(())
    }

    pub(crate) fn may_create(&self, name: &str) -> Result<(), Refusal> {
        if !is_name(name) {
            return Err(format!(
                "`{}` cannot be a name: use 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`",
                name.escape_debug()
            ));
        }
        if self.version(name).is_ok() {
            return Err(format!("there is a version `{name}` already: delete it, or use another name"));
        }
        if self.versions.len() >= VERSIONS_MAX || self.epoch >= NOW - 1 {
            return Err(format!("there are {VERSIONS_MAX} versions already: delete one"));
        }
        Ok(())
    }

    /// Deletes a version, and frees the chunks that only it saw.
    pub(crate) fn delete(&mut self, name: &str) -> Result<(), Refusal> {
        self.forget_version(name)?;
        self.visited += self.sweep(usize::MAX) as u64;
        Ok(())
    }

    /// Deletes a version. Its chunks are freed by [`sweep`](Self::sweep).
    pub(crate) fn forget_version(&mut self, name: &str) -> Result<(), Refusal> {
        let epoch = self.version(name)?.epoch;
        self.versions.retain(|version| version.epoch != epoch);
        self.deletions += 1;
        self.swept = (!self.past.is_empty()).then_some(0);
        Ok(())
    }

    /// Visits at most `most` past mappings, and frees the chunks that no version sees. Returns the
    /// number of visited ones.
    pub(crate) fn sweep(&mut self, most: usize) -> usize {
        let Some(mut at) = self.swept else { return 0 };
        let mut visited = 0;
        while visited < most
            && let Some(mapping) = self.past.get(at).copied()
        {
            if self.is_seen(&mapping) {
                at += 1;
            } else {
                self.past.swap_remove(at);
                self.release(mapping.physical);
            }
            visited += 1;
        }
        self.swept = Some(at).filter(|at| *at < self.past.len());
        visited
    }

    /// Returns the number of past mappings that [`sweep`](Self::sweep) has still to visit.
    pub(crate) fn unswept(&self) -> usize {
        self.swept.map_or(0, |at| self.past.len() - at)
    }

    /// Returns the number of past mappings that complete deletions have visited.
    pub(crate) fn visited(&self) -> u64 {
        self.visited
    }

    /// Takes a free chunk, for which it sweeps one step if necessary. Without a chunk, and with mappings that
    /// are [unswept](Self::unswept), a later call may find one.
    pub(crate) fn allocate_or_sweep(&mut self) -> Option<u32> {
        self.allocate().or_else(|| {
            self.sweep(SWEEP);
            self.allocate()
        })
    }

    fn is_seen(&self, mapping: &Mapping) -> bool {
        let first = self.versions.partition_point(|version| version.epoch < mapping.born);
        self.versions.get(first).is_some_and(|version| version.epoch < mapping.died)
    }

    /// Restores the drive's state of a version.
    pub(crate) fn roll_back(&mut self, name: &str) -> Result<(), Refusal> {
        let map = self.may_roll_back(name)?;
        for (logical, then) in (0..).zip(map) {
            if then != self.now[logical as usize] {
                let physical = then.checked_sub(1);
                physical.into_iter().for_each(|physical| self.uses.take(physical));
                self.put(logical, physical);
            }
        }
        Ok(())
    }

    /// Returns the map to roll back to.
    pub(crate) fn may_roll_back(&self, name: &str) -> Result<Vec<u32>, Refusal> {
        let map = self.map_of(self.version(name)?.epoch);
        let newest = self.newest();
        let dying = |at: usize| self.now[at] != 0 && self.now[at] != map[at] && self.born[at] <= newest;
        let dying = (0..map.len()).filter(|at| dying(*at)).count() as u64;
        let mapped = map.iter().filter(|physical| **physical != 0).count() as u64;
        if mapped + dying + self.seen() + REQUESTS > self.mappings_max {
            return Err("there is no room to note what a rollback changes: delete a version first".to_owned());
        }
        Ok(map)
    }

    /// Returns the map at the end of an epoch, by chunk of the drive: the chunk of the store plus one, or
    /// zero.
    pub(crate) fn map_of(&self, epoch: u32) -> Vec<u32> {
        let born = |(now, born): (&u32, &u32)| if *born <= epoch { *now } else { 0 };
        let mut map: Vec<u32> = self.now.iter().zip(&self.born).map(born).collect();
        for mapping in self.past.iter().filter(|mapping| mapping.is_seen_at(epoch)) {
            map[mapping.logical as usize] = mapping.physical + 1;
        }
        map
    }

    pub(crate) fn version(&self, name: &str) -> Result<&Version, Refusal> {
        self.versions.iter().find(|version| version.name == name).ok_or_else(|| {
            format!("there is no version `{}`; `list` shows the versions", name.escape_debug())
        })
    }

    pub(crate) fn versions(&self) -> &[Version] {
        &self.versions
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn deletions(&self) -> u64 {
        self.deletions
    }

    /// Returns the number of mapped chunks of the drive.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Returns the number of chunks of the store: all, and those available. Without room to note more none is
    /// available.
    pub(crate) fn room(&self) -> (u64, u64) {
        let notes = self.mappings_max.saturating_sub(self.count() + REQUESTS);
        (self.uses.len(), notes.min(self.uses.free.into()))
    }

    /// Sets the room for mappings.
    #[cfg(test)]
    pub(crate) fn set_mappings_max(&mut self, mappings_max: u64) {
        self.mappings_max = mappings_max;
    }

    /// Returns the number of chunks of the store in use.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn used(&self) -> u64 {
        self.uses.len() - u64::from(self.uses.free)
    }

    /// Returns mappings in the order of a checkpoint, from a position on: live ones first. A position counts
    /// the chunks of the drive, and then the past mappings.
    pub(crate) fn mappings(&self, from: usize) -> impl Iterator<Item = (usize, Mapping)> {
        let alive = (from..self.now.len()).filter_map(|at| {
            let (physical, born) = (self.now[at].checked_sub(1)?, self.born[at]);
            Some((at + 1, Mapping { logical: at as u32, born, died: NOW, physical }))
        });
        let first = from.saturating_sub(self.now.len());
        let place = move |(at, mapping): (usize, &Mapping)| (self.now.len() + first + at + 1, *mapping);
        let swept = self.swept;
        let past = self.past[first..].iter().enumerate();
        alive.chain(past.filter(move |(_, mapping)| swept.is_none() || self.is_seen(mapping)).map(place))
    }

    /// Returns the number of mappings, including the unswept ones.
    pub(crate) fn count(&self) -> u64 {
        self.mapped + self.past.len() as u64
    }

    /// Returns the number of mappings of a checkpoint.
    pub(crate) fn count_seen(&self) -> u64 {
        self.mapped + self.seen()
    }

    /// Returns the number of past mappings that a version sees.
    fn seen(&self) -> u64 {
        match self.swept {
            None => self.past.len() as u64,
            Some(_) => self.past.iter().filter(|mapping| self.is_seen(mapping)).count() as u64,
        }
    }
}

/// Past mappings that are visited at a time for a write.
pub(crate) const SWEEP: usize = 4096;

/// Most chunks that may wait for their first mapping: room is kept for them.
const REQUESTS: u64 = sluice_uif::abi::REQUESTS_MAX as u64;

/// Loading from a disk, whose content may be anything.
impl Table {
    pub(crate) fn begin(&mut self, epoch: u64, deletions: u64) -> Result<(), Refusal> {
        self.epoch = u32::try_from(epoch).ok().filter(|epoch| (1..NOW).contains(epoch)).ok_or("its epoch")?;
        self.deletions = deletions;
        Ok(())
    }

    pub(crate) fn load_version(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let version = Version::get(bytes).ok_or("a version's name")?;
        let follows = version.epoch > self.newest() && version.epoch < self.epoch;
        if !follows || self.versions.len() == VERSIONS_MAX || self.version(&version.name).is_ok() {
            return Err("its versions".to_owned());
        }
        self.versions.push(version);
        Ok(())
    }

    pub(crate) fn load_mapping(&mut self, mapping: Mapping) -> Result<(), Refusal> {
        let Mapping { logical, born, died, physical } = mapping;
        let possible = (logical as usize) < self.now.len() && self.uses.of(physical).is_some();
        let ends = died == NOW || died <= self.epoch && self.is_seen(&mapping);
        if !possible || born == 0 || born > self.epoch || born >= died || !ends {
            return Err(format!("the mapping of chunk {logical}"));
        }
        if died != NOW {
            self.past.push(mapping);
        } else if self.now[logical as usize] == 0 {
            (self.now[logical as usize], self.born[logical as usize]) = (physical + 1, born);
            self.mapped += 1;
        } else {
            return Err(format!("chunk {logical}, which is mapped twice"));
        }
        self.uses.take(physical);
        Ok(())
    }

    /// Checks a loaded checkpoint for contradictions between mappings.
    pub(crate) fn verify(&self) -> Result<(), Refusal> {
        let mut all: Vec<Mapping> = self.mappings(0).map(|(_, mapping)| mapping).collect();
        all.sort_unstable();
        let overlaps = |pair: &&[Mapping]| pair[0].logical == pair[1].logical && pair[0].died > pair[1].born;
        if let Some(pair) = all.windows(2).find(overlaps) {
            return Err(format!("chunk {}, which two mappings claim at a time", pair[0].logical));
        }
        // Both of two chunks of the drive would write a chunk that they share.
        all.sort_unstable_by_key(|mapping| (mapping.physical, mapping.logical));
        let shared =
            |pair: &&[Mapping]| pair[0].physical == pair[1].physical && pair[0].logical != pair[1].logical;
        match all.windows(2).find(shared) {
            Some(pair) => {
                Err(format!("chunk {} of the store, which two of the drive have", pair[0].physical))
            }
            None => Ok(()),
        }
    }

    /// Applies a change from the log.
    pub(crate) fn replay(&mut self, logical: u32, physical: Option<u32>) -> Result<(), Refusal> {
        if logical as usize >= self.now.len() || self.is_own(logical) {
            return Err(format!("a change of chunk {logical}"));
        }
        if let Some(physical) = physical {
            if self.uses.of(physical) != Some(0) || self.count() >= self.mappings_max {
                return Err(format!("chunk {physical} of the store, which is in use"));
            }
            self.uses.take(physical);
        }
        self.put(logical, physical);
        Ok(())
    }
}
