//! Possible contents of a namespace: the reference that every run is compared with.
//!
//! The model does not predict the result of a read but the set of *permitted* results. Commands in flight
//! together have no order (Base 3.3.1.2), so a block can be any of several versions until a read has shown
//! which.
//!
//! A version of a block is *superseded* when another write, which began after the version's own had ended,
//! has ended with success. A read may return every version that was not superseded when it began, and every
//! one that began during it. A power cut may bring back a superseded version too, until the version is
//! *buried*: by a Force Unit Access write that superseded it, or by a Flush that began after it was
//! superseded and ended with success.

use std::collections::BTreeMap;
use std::fmt;

/// Number of the contents of a block. Each write has its own, so that a block identifies its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// Contents of a block of zeroes: never written, Write Zeroes, deallocated.
    pub const ZERO: Tag = Tag(0);
}

/// Number of an action in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlightId(u64);

/// Action of a host on a namespace, in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Read {
        first: u64,
        blocks: u64,
    },
    /// Write of one tag for each block. Write Zeroes is one of [`Tag::ZERO`].
    Write {
        first: u64,
        tags: Vec<Tag>,
        fua: bool,
    },
    /// Deallocation, after which each block is zeroes or unchanged.
    Deallocate {
        first: u64,
        blocks: u64,
    },
    Flush,
}

/// Result of a read that is not permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub block: u64,
    pub found: Tag,
    pub allowed: Vec<Tag>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} is {:x?}; it may be {:x?}", self.block, self.found, self.allowed)
    }
}

/// Time of the model: a count of its events.
type Moment = u64;

#[derive(Clone, Debug)]
struct Version {
    tag: Tag,
    began: Moment,
    ended: Option<Moment>,
    superseded: Option<Moment>,
    /// End of the write that superseded the version. A read that shows this may have begun later.
    successor_ended: Moment,
    /// Flag of a version from before the last power cut, which is in no cache any more.
    settled: bool,
}

impl Version {
    fn original() -> Self {
        Self { tag: Tag::ZERO, began: 0, ended: Some(0), superseded: None, successor_ended: 0, settled: true }
    }

    /// Marks the version as superseded from `moment` on, by a write that ended at `successor_ended`.
    fn supersede(&mut self, moment: Moment, successor_ended: Moment) {
        if self.superseded.is_none() {
            (self.superseded, self.successor_ended) = (Some(moment), successor_ended);
        }
    }

    /// Returns whether a write that began at `moment` comes after this version.
    fn over_before(&self, moment: Moment) -> bool {
        self.ended.is_some_and(|ended| ended < moment)
    }
}

#[derive(Debug)]
enum Flight {
    Read(Reading),
    Write { first: u64, blocks: u64, began: Moment, supersedes: bool, durable: bool },
    Flush { began: Moment },
}

#[derive(Debug)]
struct Reading {
    first: u64,
    began: Moment,
    blocks: Vec<Sight>,
}

/// Permitted results of a read in flight for one block.
#[derive(Debug)]
struct Sight {
    allowed: Vec<Tag>,
    /// Flag of a block that no write was in flight for at any time of the read: the result is its contents.
    quiet: bool,
}

/// The reference model of one namespace.
#[derive(Debug)]
pub struct ModelNamespace {
    blocks: Vec<Vec<Version>>,
    flights: BTreeMap<FlightId, Flight>,
    now: Moment,
    /// Flag of a cache: finished writes may be lost at a power cut until a Flush.
    volatile_cache: bool,
    /// Ends of writes that the storage lost since, until a Flush fails for them.
    owed: Vec<Moment>,
}

impl ModelNamespace {
    /// Creates a namespace of zeroes.
    pub fn new(blocks: u64, volatile_cache: bool) -> Self {
        let blocks = (0..blocks).map(|_| vec![Version::original()]).collect();
        Self { blocks, flights: BTreeMap::new(), now: 0, volatile_cache, owed: Vec::new() }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Sets whether writes that begin from now on are durable when they have ended.
    pub fn set_volatile_cache(&mut self, volatile_cache: bool) {
        self.volatile_cache = volatile_cache;
    }

    /// Enlarges the namespace by zeroes.
    pub fn grow(&mut self, blocks: u64) {
        self.blocks.resize_with(blocks as usize, || vec![Version::original()]);
    }

    /// Begins an action: from now on its effects may be seen.
    pub fn begin(&mut self, action: Action) -> FlightId {
        self.now += 1;
        let flight = match action {
            Action::Read { first, blocks } => Flight::Read(self.begin_read(first, blocks)),
            Action::Write { first, tags, fua } => self.begin_write(first, &tags, true, fua),
            Action::Deallocate { first, blocks } => {
                self.begin_write(first, &vec![Tag::ZERO; blocks as usize], false, false)
            }
            Action::Flush => Flight::Flush { began: self.now },
        };
        let id = FlightId(self.now);
        self.flights.insert(id, flight);
        id
    }

    fn begin_read(&self, first: u64, blocks: u64) -> Reading {
        let sight = |block| Sight {
            allowed: self.candidates(block),
            quiet: self.blocks[block as usize].iter().all(|version| version.ended.is_some()),
        };
        Reading { first, began: self.now, blocks: (first..first + blocks).map(sight).collect() }
    }

    fn begin_write(&mut self, first: u64, tags: &[Tag], supersedes: bool, fua: bool) -> Flight {
        for (block, &tag) in (first..).zip(tags) {
            let began = self.now;
            let version =
                Version { tag, began, ended: None, superseded: None, successor_ended: 0, settled: false };
            self.blocks[block as usize].push(version);
            for flight in self.flights.values_mut() {
                if let Flight::Read(reading) = flight {
                    reading.disturb(block, tag);
                }
            }
        }
        let durable = fua || !self.volatile_cache;
        Flight::Write { first, blocks: tags.len() as u64, began: self.now, supersedes, durable }
    }

    /// Ends a write or Flush. A failed one may still have done some of its work.
    pub fn end(&mut self, id: FlightId, success: bool) {
        self.now += 1;
        match self.flights.remove(&id) {
            Some(Flight::Write { first, blocks, began, supersedes, durable }) => {
                for block in first..first + blocks {
                    self.end_write(block, began, success && supersedes, durable);
                }
            }
            Some(Flight::Flush { began }) if success => {
                assert!(
                    self.owed.iter().all(|ended| *ended > began),
                    "a Flush succeeded for writes that are lost"
                );
                self.bury(began);
            }
            Some(Flight::Flush { began }) => self.owed.retain(|ended| *ended > began),
            Some(Flight::Read(_)) => assert!(!success, "a read ends with what it returned"),
            None => panic!("{id:?} ended twice, or never began"),
        }
    }

    /// Ends a Flush of an operator's order, whose result the host does not get.
    pub fn end_order(&mut self, id: FlightId, success: bool) {
        self.now += 1;
        let Some(Flight::Flush { began }) = self.flights.remove(&id) else { panic!("{id:?} is not a Flush") };
        if success {
            self.bury(began);
        }
    }

    fn bury(&mut self, began: Moment) {
        let buried = |version: &Version| version.superseded.is_some_and(|moment| moment < began);
        self.blocks.iter_mut().for_each(|versions| versions.retain(|version| !buried(version)));
    }

    /// Loses all data that is not durable, while the namespace stays in use. A Flush must fail for that: one
    /// that begins after the writes that may be lost had ended.
    pub fn lose_unflushed(&mut self) {
        self.lose_blocks(|_| true, |_, _| true);
    }

    /// Loses the data of some blocks that is not durable. A Flush must fail for a block with contents that `is_owed`.
    pub fn lose_blocks(&mut self, is_lost: impl Fn(u64) -> bool, is_owed: impl Fn(u64, Tag) -> bool) {
        self.now += 1;
        for (block, versions) in (0..).zip(&mut self.blocks).filter(|(block, _)| is_lost(*block)) {
            let is_owed = |version: &&Version| version.superseded.is_some() && is_owed(block, version.tag);
            let superseded = versions.iter().filter(is_owed);
            self.owed.extend(superseded.map(|version| version.successor_ended));
            versions.iter_mut().for_each(|version| version.superseded = None);
            for flight in self.flights.values_mut() {
                let Flight::Read(reading) = flight else { continue };
                versions.iter().for_each(|version| reading.disturb(block, version.tag));
            }
        }
        self.owed.sort_unstable();
        self.owed.dedup();
        for flight in self.flights.values_mut() {
            // A part of the write may have been lost.
            if let Flight::Write { supersedes, .. } = flight {
                *supersedes = false;
            }
        }
    }

    fn end_write(&mut self, block: u64, began: Moment, supersedes: bool, durable: bool) {
        let versions = &mut self.blocks[block as usize];
        for version in versions.iter_mut() {
            if version.began == began {
                version.ended = Some(self.now);
            } else if supersedes && version.over_before(began) {
                version.supersede(self.now, self.now);
            }
        }
        if supersedes && durable {
            versions.retain(|version| !version.over_before(began));
        }
    }

    /// Ends a successful read with these blocks. Blocks that the host did not read are none.
    pub fn end_read(&mut self, id: FlightId, found: &[Option<Tag>]) -> Result<(), Violation> {
        let reading = self.end_reading(id, found.len());
        for ((block, sight), found) in (reading.first..).zip(reading.blocks).zip(found) {
            let Some(found) = *found else { continue };
            if !sight.allowed.contains(&found) {
                return Err(Violation { block, found, allowed: sight.allowed });
            }
            if sight.quiet {
                self.shown(block, found, reading.began);
            }
        }
        Ok(())
    }

    /// Ends a Compare, which begins as a read, that reported a difference from these blocks.
    pub fn end_unequal(&mut self, id: FlightId, wanted: &[Tag]) -> Result<(), Violation> {
        let reading = self.end_reading(id, wanted.len());
        let may_differ = |(sight, wanted): (&Sight, &Tag)| sight.allowed.iter().any(|tag| tag != wanted);
        match reading.blocks.iter().zip(wanted).any(may_differ) {
            true => Ok(()),
            false => Err(Violation { block: reading.first, found: wanted[0], allowed: wanted.to_vec() }),
        }
    }

    fn end_reading(&mut self, id: FlightId, blocks: usize) -> Reading {
        self.now += 1;
        let Some(Flight::Read(reading)) = self.flights.remove(&id) else { panic!("{id:?} is not a read") };
        assert_eq!(blocks, reading.blocks.len(), "a read returns all its blocks");
        reading
    }

    /// Handles a read of this block while no write was in flight: other versions are not its contents.
    fn shown(&mut self, block: u64, found: Tag, began: Moment) {
        let versions = &mut self.blocks[block as usize];
        let is_found = |version: &&Version| version.tag == found && version.began < began;
        if versions.iter().filter(is_found).all(|version| version.settled) {
            versions.retain(|version| !version.settled || version.tag == found);
        }
        let ended = versions.iter().filter(is_found).filter_map(|version| version.ended).max();
        for version in versions.iter_mut().filter(|version| version.tag != found && version.began < began) {
            version.supersede(began, ended.unwrap_or(began));
        }
    }

    /// Ends the process that served the namespace: commands in flight never end, the storage stays.
    pub fn crash(&mut self) {
        self.now += 1;
        self.flights.clear();
        self.owed.clear();
        for version in self.blocks.iter_mut().flatten() {
            version.ended.get_or_insert(self.now);
        }
    }

    /// Cuts all power: commands in flight never end, and data that is not durable may be gone.
    pub fn power_cut(&mut self) {
        self.crash();
        for version in self.blocks.iter_mut().flatten() {
            version.superseded = None;
            version.settled = true;
        }
    }

    /// Returns the permitted results of a read of this block that begins now.
    pub fn candidates(&self, block: u64) -> Vec<Tag> {
        let versions = self.blocks[block as usize].iter();
        versions.filter(|version| version.superseded.is_none()).map(|version| version.tag).collect()
    }

    /// Returns the block's contents, where only one is possible.
    pub fn known(&self, block: u64) -> Option<Tag> {
        let candidates = self.candidates(block);
        let first = *candidates.first()?;
        candidates.iter().all(|&tag| tag == first).then_some(first)
    }

    /// Returns the number of actions that have not ended.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }
}

impl Reading {
    /// Handles a write of `block` that began during the read.
    fn disturb(&mut self, block: u64, tag: Tag) {
        let sight = block.checked_sub(self.first).and_then(|index| self.blocks.get_mut(index as usize));
        if let Some(sight) = sight {
            sight.allowed.push(tag);
            sight.quiet = false;
        }
    }
}
