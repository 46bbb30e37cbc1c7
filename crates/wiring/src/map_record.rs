//! Contents of a classifier's maps, for another process.

use super::classifier::Attached;
use sluice_classifier::{Map, Update};
use sluice_command::record::{Reader, RecordError, Writer};
use std::sync::Arc;

/// Bytes of all maps of a drive that are handed over.
const BYTES_MAX: u64 = 16 << 20;

/// Namespaces, maps and entries in a record, and bytes of a map's name.
const NAMESPACES_MAX: usize = 1024;
const MAPS_MAX: usize = 1024;
const ENTRIES_MAX: usize = 1 << 24;
const NAME_MAX: usize = 256;

/// Contents of a map.
#[derive(Debug)]
pub(super) struct MapRecord {
    nsid: u32,
    name: String,
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attached {
    /// Returns whether the maps are small enough to be handed over.
    pub(super) fn has_small_maps(&self) -> bool {
        let bytes = |map: &Map| {
            let def = map.def();
            u64::from(def.max_entries).saturating_mul(u64::from(def.key_size) + u64::from(def.value_size))
        };
        self.own_maps().iter().map(|(_, map)| bytes(map)).fold(0, u64::saturating_add) <= BYTES_MAX
    }

    /// Returns the maps with the NSID of the first namespace that has each.
    fn own_maps(&self) -> Vec<(u32, &Arc<Map>)> {
        let mut own: Vec<(u32, &Arc<Map>)> = Vec::new();
        for nsid in 1..=self.namespaces() {
            for map in self.maps_of(nsid) {
                if !own.iter().any(|(_, known)| Arc::ptr_eq(known, map)) {
                    own.push((nsid, map));
                }
            }
        }
        own
    }

    /// Writes the contents of the maps. Translation caches start empty in the other process.
    pub(super) fn put_maps(&self, part: &mut Writer) {
        part.list(self.own_maps(), |part, (nsid, map)| {
            part.put(nsid);
            part.bytes(map.def().name.as_bytes());
            part.list(map.entries(), |part, (key, value)| {
                part.bytes(&key);
                part.bytes(&value);
            });
        });
    }

    /// Sets the entries of another process in those maps that the program still has.
    pub(super) fn fill_maps(&self, drive: &str, maps: &[MapRecord]) {
        for MapRecord { nsid, name, entries } in maps {
            let map = self.maps_of(*nsid).iter().find(|map| map.def().name == *name);
            let set = |map: &Arc<Map>| {
                entries.iter().try_for_each(|(key, value)| map.set(key, value, Update::Any)).is_ok()
            };
            if !map.is_some_and(set) {
                tracing::warn!(
                    "drive {drive}: the contents of map {name} are not continued: the program has no such map"
                );
            }
        }
    }
}

/// Reads the contents of maps.
pub(super) fn read_maps(part: &mut Reader<'_>) -> Result<Vec<MapRecord>, RecordError> {
    part.list(NAMESPACES_MAX * MAPS_MAX, |part| {
        let nsid = part.get()?;
        let name =
            std::str::from_utf8(part.bytes(NAME_MAX)?).map_err(|_| RecordError::Invalid("name of a map"))?;
        let entries = part.list(ENTRIES_MAX, |part| {
            let key = part.bytes(BYTES_MAX as usize)?.to_vec();
            Ok((key, part.bytes(BYTES_MAX as usize)?.to_vec()))
        })?;
        Ok(MapRecord { nsid, name: name.to_owned(), entries })
    })
}
