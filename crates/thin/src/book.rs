//! State of a pool: its volumes, and the extent of each mapping. It is the same in memory and on the disk.

use crate::block::{number, number_32};
use crate::layout::EXTENT;
use crate::map::Map;
use std::collections::BTreeMap;

/// Most extents of a pool.
pub const EXTENTS_MAX: u32 = (1 << 30) - 2;

/// Most volumes of a pool.
pub const VOLUMES_MAX: usize = 1024;

/// Most bytes of a volume, 64 TiB.
const SIZE_MAX: u64 = 64 << 40;

/// Most bytes of a volume's name.
pub(crate) const NAME_MAX: usize = 64;

/// Bytes of a volume in a checkpoint, and of a mapping.
pub(crate) const VOLUME_BYTES: usize = 16 + NAME_MAX;
pub(crate) const MAPPING_BYTES: usize = 12;

/// Change of the state: the content of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An extent of a volume has this extent of the pool, or none.
    Map {
        volume: u32,
        logical: u32,
        physical: Option<u32>,
    },
    Create {
        volume: u32,
        name: String,
        size: u64,
    },
    Resize {
        volume: u32,
        size: u64,
    },
    Delete {
        volume: u32,
    },
    /// A new volume with the content and the size of another one, whose extents they share.
    Clone {
        volume: u32,
        name: String,
        from: u32,
    },
}

impl Change {
    /// Returns the bytes of the change in a record.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Map { .. } | Self::Resize { .. } | Self::Delete { .. } => 16,
            Self::Create { .. } | Self::Clone { .. } => 16 + VOLUME_BYTES,
        }
    }

    /// Writes the change to the beginning of these bytes.
    pub(crate) fn put(&self, bytes: &mut [u8]) {
        let mut words = |words: [u32; 4]| {
            for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        };
        match self {
            Self::Map { volume, logical, physical } => {
                words([1, *volume, *logical, physical.map_or(0, |extent| extent + 1)]);
            }
            Self::Resize { volume, size } => words([2, *volume, *size as u32, (*size >> 32) as u32]),
            Self::Delete { volume } => words([3, *volume, 0, 0]),
            Self::Create { volume, name, size } => {
                words([4, *volume, 0, 0]);
                put_volume(&mut bytes[16..], *volume, name, *size);
            }
            Self::Clone { volume, name, from } => {
                words([5, *volume, *from, 0]);
                put_volume(&mut bytes[16..], *volume, name, 0);
            }
        }
    }

    /// Returns the change at the beginning of these bytes; none if there is none.
    pub(crate) fn get(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..16)?;
        let [tag, volume, third, fourth] = [0, 4, 8, 12].map(|at| number_32(head, at));
        Some(match tag {
            1 => Self::Map { volume, logical: third, physical: fourth.checked_sub(1) },
            2 => Self::Resize { volume, size: number(head, 8) },
            3 => Self::Delete { volume },
            4 => {
                let (_, name, size) = get_volume(bytes.get(16..)?)?;
                Self::Create { volume, name, size }
            }
            5 => Self::Clone { volume, name: get_volume(bytes.get(16..)?)?.1, from: third },
            _ => return None,
        })
    }
}

/// Writes a volume as a checkpoint has it.
pub(crate) fn put_volume(bytes: &mut [u8], volume: u32, name: &str, size: u64) {
    bytes[..4].copy_from_slice(&volume.to_le_bytes());
    bytes[4..8].copy_from_slice(&(name.len() as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&size.to_le_bytes());
    bytes[16..16 + name.len()].copy_from_slice(name.as_bytes());
}

pub(crate) fn get_volume(bytes: &[u8]) -> Option<(u32, String, u64)> {
    let bytes = bytes.get(..VOLUME_BYTES)?;
    let length = number_32(bytes, 4) as usize;
    let name = bytes.get(16..16usize.checked_add(length)?)?;
    Some((number_32(bytes, 0), String::from_utf8(name.to_vec()).ok()?, number(bytes, 8)))
}

/// A volume.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) size: u64,
    /// Extent of the pool, plus one.
    pub(crate) map: Map,
    /// Mappings of the volume.
    pub(crate) mapped: u64,
}

/// Space of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUse {
    pub name: String,
    pub size: u64,
    /// Bytes of the extents that the volume has.
    pub allocated: u64,
    /// Bytes of the extents that no other volume has: a deletion frees them. None if they were not counted.
    pub exclusive: Option<u64>,
    /// Whether a namespace uses the volume.
    pub is_open: bool,
}

/// Returns whether a volume may have this many bytes: whole extents, so that none is in use in part.
pub(crate) fn is_size(size: u64) -> bool {
    (EXTENT..=SIZE_MAX).contains(&size) && size.is_multiple_of(EXTENT)
}

/// State of a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    volumes: BTreeMap<u32, Volume>,
    /// Mappings of each extent of the pool.
    references: Vec<u32>,
    mappings: u64,
}

impl Book {
    /// Creates the state of an empty pool of this many extents.
    pub(crate) fn new(extents: u32) -> Self {
        Self { references: vec![0; extents as usize], ..Self::default() }
    }

    pub(crate) fn extents(&self) -> u32 {
        self.references.len() as u32
    }

    pub(crate) fn grow(&mut self, extents: u32) {
        self.references.resize((extents as usize).max(self.references.len()), 0);
    }

    pub(crate) fn mappings(&self) -> u64 {
        self.mappings
    }

    pub(crate) fn volumes(&self) -> impl ExactSizeIterator<Item = (u32, &Volume)> {
        self.volumes.iter().map(|(number, volume)| (*number, volume))
    }

    /// Returns the volumes from this number on.
    pub(crate) fn volumes_from(&self, number: u32) -> impl Iterator<Item = (u32, &Volume)> {
        self.volumes.range(number..).map(|(number, volume)| (*number, volume))
    }

    pub(crate) fn volume(&self, number: u32) -> Option<&Volume> {
        self.volumes.get(&number)
    }

    pub(crate) fn find(&self, name: &str) -> Option<(u32, &Volume)> {
        self.volumes().find(|(_, volume)| volume.name == name)
    }

    /// Returns the number for a new volume.
    pub(crate) fn next_number(&self) -> Option<u32> {
        (self.volumes.len() < VOLUMES_MAX).then(|| (0..).find(|number| !self.volumes.contains_key(number)))?
    }

    /// Returns the number of mappings that an extent of the pool has.
    pub(crate) fn references(&self, physical: u32) -> u32 {
        self.references.get(physical as usize).copied().unwrap_or(0)
    }

    /// Returns the number of extents without a mapping.
    #[cfg(test)]
    pub(crate) fn unmapped(&self) -> u64 {
        self.references.iter().filter(|count| **count == 0).count() as u64
    }

    /// Checks a change, and applies it. `freed` takes the extents that have no mapping any more.
    ///
    /// # Errors
    /// The change contradicts the state.
    pub(crate) fn apply(&mut self, change: &Change, mut freed: impl FnMut(u32)) -> Result<(), String> {
        match change {
            Change::Map { volume, logical, physical } => {
                if let Some(extent) = physical
                    && self.references.get(*extent as usize) != Some(&0)
                {
                    return Err(format!("extent {extent} is in use, or is not in the pool"));
                }
                self.map(*volume, *logical, *physical, freed)
            }
            Change::Create { volume, name, size } => self.create(*volume, name, *size, Map::default(), 0),
            Change::Clone { volume, name, from } => {
                let from = self.volumes.get(from).ok_or("there is no volume to clone")?;
                let (map, mapped, size) = (from.map.clone(), from.mapped, from.size);
                self.create(*volume, name, size, map.clone(), mapped)?;
                map.iter().for_each(|(_, word)| self.references[word as usize - 1] += 1);
                self.mappings += mapped;
                Ok(())
            }
            Change::Resize { volume, size } => {
                let volume = self.volumes.get_mut(volume).ok_or("there is no such volume")?;
                if *size < volume.size || !is_size(*size) {
                    return Err("a volume only grows, by whole extents, to 64 TiB at most".to_owned());
                }
                volume.size = *size;
                Ok(())
            }
            Change::Delete { volume } => {
                let gone = self.volumes.remove(volume).ok_or("there is no such volume")?;
                self.mappings -= gone.mapped;
                for (_, word) in gone.map.iter() {
                    self.dereference(word - 1, &mut freed);
                }
                Ok(())
            }
        }
    }

    /// Adds a volume of a checkpoint.
    pub(crate) fn restore(&mut self, volume: u32, name: &str, size: u64) -> Result<(), String> {
        self.create(volume, name, size, Map::default(), 0)
    }

    /// Adds a mapping of a checkpoint. Several volumes may have the extent.
    pub(crate) fn restore_mapping(&mut self, volume: u32, logical: u32, physical: u32) -> Result<(), String> {
        if physical as usize >= self.references.len() {
            return Err(format!("extent {physical} is not in the pool: the device is smaller than it was"));
        }
        if self.volumes.get(&volume).is_some_and(|volume| volume.map.get(logical) != 0) {
            return Err("a volume has two extents at one place".to_owned());
        }
        self.map(volume, logical, Some(physical), |_| {})
    }

    fn create(&mut self, number: u32, name: &str, size: u64, map: Map, mapped: u64) -> Result<(), String> {
        let is_possible =
            !name.is_empty() && name.len() <= NAME_MAX && is_size(size) && self.volumes.len() < VOLUMES_MAX;
        if !is_possible || self.volumes.contains_key(&number) || self.find(name).is_some() {
            return Err(format!("there can be no volume `{}`", name.escape_debug()));
        }
        self.volumes.insert(number, Volume { name: name.to_owned(), size, map, mapped });
        Ok(())
    }

    fn map(
        &mut self,
        number: u32,
        logical: u32,
        physical: Option<u32>,
        mut freed: impl FnMut(u32),
    ) -> Result<(), String> {
        let volume = self.volumes.get_mut(&number).ok_or("there is no such volume")?;
        if u64::from(logical) >= volume.size / EXTENT {
            return Err(format!("extent {logical} is behind the end of the volume"));
        }
        let previous = volume.map.set(logical, physical.map_or(0, |extent| extent + 1));
        let (added, removed) = (u64::from(physical.is_some()), u64::from(previous != 0));
        volume.mapped = volume.mapped + added - removed;
        self.mappings = self.mappings + added - removed;
        if let Some(extent) = physical {
            self.references[extent as usize] += 1;
        }
        if previous != 0 {
            self.dereference(previous - 1, &mut freed);
        }
        Ok(())
    }

    fn dereference(&mut self, physical: u32, freed: &mut impl FnMut(u32)) {
        let count = &mut self.references[physical as usize];
        *count -= 1;
        if *count == 0 {
            freed(physical);
        }
    }
}
