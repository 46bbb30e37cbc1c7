//! What a namespace may hold: the reference that every run is compared with.
//!
//! The model does not say what a read returns but what it *may* return. Commands in flight together
//! have no order (Base 3.3.1.2), so a block can be any of several versions until a read has shown which.
//!
//! A version of a block is *superseded* when another write, which began after the version's own had
//! ended, has ended with success. A read may return every version that was not superseded when it began,
//! and every one that began during it. A power cut may bring back a superseded version too, until it is
//! *buried*: by a Force Unit Access write that superseded it, or by a Flush that began after it was
//! superseded and ended with success.

use std::collections::BTreeMap;
use std::fmt;

/// Names the contents of a block. Each write has its own, so that a block shows whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// A block of zeroes: never written, Write Zeroes, deallocated.
    pub const ZERO: Tag = Tag(0);
}

/// Names an action in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlightId(u64);

/// What a host can ask of a namespace, as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Read {
        first: u64,
        blocks: u64,
    },
    /// A write of one tag for each block. Write Zeroes is one of [`Tag::ZERO`].
    Write {
        first: u64,
        tags: Vec<Tag>,
        fua: bool,
    },
    /// Afterwards each block is zeroes or what it was.
    Deallocate {
        first: u64,
        blocks: u64,
    },
    Flush,
}

/// A read returned what it may not.
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

/// The times of the model are a count of its events.
type Moment = u64;

#[derive(Clone, Debug)]
struct Version {
    tag: Tag,
    began: Moment,
    ended: Option<Moment>,
    superseded: Option<Moment>,
    /// From before the last power cut, so not in a cache any more.
    settled: bool,
}

impl Version {
    fn original() -> Self {
        Self { tag: Tag::ZERO, began: 0, ended: Some(0), superseded: None, settled: true }
    }

    /// True if a write that began at `moment` comes after this one.
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

/// What a read in flight may find in one block.
#[derive(Debug)]
struct Sight {
    allowed: Vec<Tag>,
    /// No write was in flight at any time of the read: what it finds is what is there.
    quiet: bool,
}

/// The reference model of one namespace.
#[derive(Debug)]
pub struct ModelNamespace {
    blocks: Vec<Vec<Version>>,
    flights: BTreeMap<FlightId, Flight>,
    now: Moment,
    /// Finished writes may be lost at a power cut until a Flush.
    volatile_cache: bool,
    /// When writes ended that the storage lost since, until a Flush fails for them.
    owed: Vec<Moment>,
}

impl ModelNamespace {
    /// A namespace of zeroes.
    pub fn new(blocks: u64, volatile_cache: bool) -> Self {
        let blocks = (0..blocks).map(|_| vec![Version::original()]).collect();
        Self { blocks, flights: BTreeMap::new(), now: 0, volatile_cache, owed: Vec::new() }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// From now on writes that begin are durable when they have ended, or not.
    pub fn set_volatile_cache(&mut self, volatile_cache: bool) {
        self.volatile_cache = volatile_cache;
    }

    /// The namespace was made larger; what is new is zeroes.
    pub fn grow(&mut self, blocks: u64) {
        self.blocks.resize_with(blocks as usize, || vec![Version::original()]);
    }

    /// The action is on its way: from now on its effects may be seen.
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
            let version = Version { tag, began: self.now, ended: None, superseded: None, settled: false };
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

    /// A write or Flush came back. One that failed may still have done some of its work.
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

    /// The end of a Flush that an operator's order made: the host is not told how it went.
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

    /// The storage loses what is not durable, while the namespace goes on. A Flush has to fail for it: one that begins
    /// after the writes that may be gone had ended.
    pub fn lose_unflushed(&mut self) {
        self.now += 1;
        for (block, versions) in (0..).zip(&mut self.blocks) {
            self.owed.extend(versions.iter().filter_map(|version| version.superseded));
            versions.iter_mut().for_each(|version| version.superseded = None);
            for flight in self.flights.values_mut() {
                let Flight::Read(reading) = flight else { continue };
                versions.iter().for_each(|version| reading.disturb(block, version.tag));
            }
        }
        self.owed.sort_unstable();
        self.owed.dedup();
        for flight in self.flights.values_mut() {
            // A part of it may have been there.
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
                version.superseded.get_or_insert(self.now);
            }
        }
        if supersedes && durable {
            versions.retain(|version| !version.over_before(began));
        }
    }

    /// A read came back with success and these blocks. Those that the host did not look at are none.
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

    /// A Compare, which begins as a read, came back and says that the blocks differ from these.
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

    /// A read saw this block while nobody wrote it: other versions are not what is there.
    fn shown(&mut self, block: u64, found: Tag, began: Moment) {
        let versions = &mut self.blocks[block as usize];
        let is_found = |version: &&Version| version.tag == found && version.began < began;
        if versions.iter().filter(is_found).all(|version| version.settled) {
            versions.retain(|version| !version.settled || version.tag == found);
        }
        for version in versions.iter_mut().filter(|version| version.tag != found && version.began < began) {
            version.superseded.get_or_insert(began);
        }
    }

    /// The process that served the namespace is gone, its storage is not: what is in flight never ends.
    pub fn crash(&mut self) {
        self.now += 1;
        self.flights.clear();
        self.owed.clear();
        for version in self.blocks.iter_mut().flatten() {
            version.ended.get_or_insert(self.now);
        }
    }

    /// All power is lost: what is in flight never ends, and what is not durable may be gone.
    pub fn power_cut(&mut self) {
        self.crash();
        for version in self.blocks.iter_mut().flatten() {
            version.superseded = None;
            version.settled = true;
        }
    }

    /// What a read of this block that begins now may return.
    pub fn candidates(&self, block: u64) -> Vec<Tag> {
        let versions = self.blocks[block as usize].iter();
        versions.filter(|version| version.superseded.is_none()).map(|version| version.tag).collect()
    }

    /// The block's contents, where only one is possible.
    pub fn known(&self, block: u64) -> Option<Tag> {
        let candidates = self.candidates(block);
        let first = *candidates.first()?;
        candidates.iter().all(|&tag| tag == first).then_some(first)
    }

    /// Actions that have not come back.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }
}

impl Reading {
    /// A write of `block` began during the read.
    fn disturb(&mut self, block: u64, tag: Tag) {
        let sight = block.checked_sub(self.first).and_then(|index| self.blocks.get_mut(index as usize));
        if let Some(sight) = sight {
            sight.allowed.push(tag);
            sight.quiet = false;
        }
    }
}
