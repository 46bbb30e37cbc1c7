//! Options of a map.

use super::{Map, MapChunk, MapTable};
use crate::layers::parts::LEGS_MAX;
use crate::{Kind, OpenCx, Prepared, Shape};
use serde::{Deserialize, Serialize};
use sluice_options::words::count;
use sluice_options::{Fault, Size};
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Chunks of the drive, each at any place of several targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MapOptions<L> {
    /// Bytes of a chunk: a power of two from 1 MiB, 64 GiB if not given.
    #[serde(default = "default_chunk")]
    pub chunk: Size,
    /// Table: for each chunk of the drive `[target, number]`, the index of the layer and the number of its chunk;
    /// `[]` for a hole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Vec<u64>>>)]
    pub chunks: Option<Vec<MapEntry>>,
    /// Order of an automatic table: `fill` one target after the other, or `spread` over all in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<MapPlacement>,
    /// Number of chunks, the first ones, that an automatic table takes of each target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Vec<u64>>,
    /// The targets besides the rest of the stack, which is target 0.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub layers: Vec<L>,
}

/// Entry of a table as a user writes it; none for a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Option<Vec<u64>>", into = "Vec<u64>")]
pub struct MapEntry(pub Option<MapChunk>);

/// Order of an automatic table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MapPlacement {
    /// All chunks of a target, then those of the next.
    Fill,
    /// A chunk of each target in turn.
    Spread,
}

impl TryFrom<Option<Vec<u64>>> for MapEntry {
    type Error = String;

    fn try_from(written: Option<Vec<u64>>) -> Result<Self, String> {
        match written.as_deref().unwrap_or_default() {
            [] => Ok(Self(None)),
            [target, chunk] => {
                let target = usize::try_from(*target).unwrap_or(usize::MAX);
                Ok(Self(Some(MapChunk { target, chunk: *chunk })))
            }
            other => Err(format!("an entry is [target, chunk] or [], and this has {} numbers", other.len())),
        }
    }
}

impl From<MapEntry> for Vec<u64> {
    fn from(entry: MapEntry) -> Self {
        entry.0.map_or_else(Vec::new, |it| vec![it.target as u64, it.chunk])
    }
}

fn default_chunk() -> Size {
    Size(64 << 30)
}

/// Minimum size of a chunk: a multiple of every block size, and of nearly all transfers.
const CHUNK_MIN: Size = Size(1 << 20);

/// Maximum number of entries of a table: 512 KiB of memory, and a bound for the steps of one command.
const ENTRIES_MAX: u64 = 65_536;

impl<L> MapOptions<L> {
    /// Returns the table. The options were [checked](Kind::check).
    pub fn table(&self) -> MapTable {
        let shift = self.chunk.0.max(1).trailing_zeros();
        match &self.chunks {
            Some(chunks) => MapTable::new(shift, chunks.iter().map(|entry| entry.0)),
            None => MapTable::new(shift, self.placed().into_iter().map(Some)),
        }
    }

    /// Returns the chunks of an automatic table.
    fn placed(&self) -> Vec<MapChunk> {
        let counts = self.counts.as_deref().unwrap_or_default();
        let of = |(target, count): (usize, &u64)| (0..*count).map(move |chunk| MapChunk { target, chunk });
        let all = counts.iter().enumerate().flat_map(of);
        // The shape of options that were not checked may be requested.
        let mut chunks: Vec<MapChunk> = all.take(ENTRIES_MAX as usize).collect();
        if self.place == Some(MapPlacement::Spread) {
            chunks.sort_by_key(|it| (it.chunk, it.target));
        }
        chunks
    }

    fn check_chunk(&self) -> Result<(), Fault> {
        match self.chunk >= CHUNK_MIN && self.chunk.0.is_power_of_two() {
            true => Ok(()),
            false => Err(Fault::at_key("chunk", format!("{} is not possible", self.chunk))
                .hint("use a power of two from 1MiB, such as 64GiB")),
        }
    }

    fn check_length(&self, key: &'static str, length: u64) -> Result<(), Fault> {
        if length == 0 {
            return Err(Fault::at_key(key, "the drive has no chunk").hint(match key {
                "counts" => "give the number of chunks of each target, such as counts = [8]",
                _ => "give an entry for each chunk of the drive, such as chunks = [[0, 0]]",
            }));
        }
        let fits =
            length <= ENTRIES_MAX && length.checked_mul(self.chunk.0).is_some_and(|it| it <= Size::MAX.0);
        match fits {
            true => Ok(()),
            false => Err(Fault::at_key(key, format!("{length} chunks of {} are too many", self.chunk))
                .hint(format!("use at most {ENTRIES_MAX} chunks, of a larger size if more are needed"))),
        }
    }

    /// Checks the table of the user.
    fn check_table(&self, chunks: &[MapEntry]) -> Result<(), Fault> {
        if let Some(key) = [("place", self.place.is_some()), ("counts", self.counts.is_some())]
            .into_iter()
            .find_map(|(key, is_given)| is_given.then_some(key))
        {
            return Err(Fault::at_key(key, "the table is given by `chunks`").hint("remove one of both"));
        }
        self.check_length("chunks", chunks.len() as u64)?;
        let (targets, mut seen) = (self.layers.len() + 1, HashMap::new());
        for (number, entry) in chunks.iter().enumerate() {
            let Some(it) = entry.0 else { continue };
            if it.target >= targets {
                return Err(Fault::at_key("chunks", format!("entry {number} names target {}", it.target))
                    .hint(format!("use targets 0 to {}, or add a target to `layers`", targets - 1)));
            }
            if let Some(before) = seen.insert(it, number) {
                let words = format!(
                    "entries {before} and {number} are both chunk {} of target {}",
                    it.chunk, it.target
                );
                return Err(Fault::at_key("chunks", words).hint("give each chunk of a target once"));
            }
            if it.chunk.checked_add(1).and_then(|end| end.checked_mul(self.chunk.0)).is_none() {
                return Err(is_beyond(number, it, self.chunk, u64::MAX));
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), Fault> {
        let counts = self.counts.as_deref().unwrap_or_default();
        let targets = self.layers.len() + 1;
        if counts.len() > targets {
            return Err(Fault::at_key("counts", format!("{} counts, but {targets} targets", counts.len()))
                .hint("give one number for each target, the rest of the stack first"));
        }
        if self.place.is_none() && !counts.is_empty() && counts.len() > 1 {
            return Err(Fault::at_key("place", "the order of the chunks is not given")
                .hint("use place = \"fill\" or place = \"spread\""));
        }
        self.check_length("counts", counts.iter().fold(0, |sum, count| sum.saturating_add(*count)))
    }
}

/// Returns the fault of an entry that lies beyond the end of its target, which has `size` bytes.
fn is_beyond(number: usize, entry: MapChunk, chunk: Size, size: u64) -> Fault {
    let (target, has) = (entry.target, size / chunk.0.max(1));
    let words = format!(
        "entry {number} is chunk {} of target {target}, which has {} of {chunk}",
        entry.chunk,
        count(usize::try_from(has).unwrap_or(usize::MAX), "chunk")
    );
    Fault::at_key("chunks", words).hint(match has {
        0 => "use smaller chunks, or a larger target".to_owned(),
        has => format!("use chunks 0 to {} of it, or make it larger", has - 1),
    })
}

/// Checks that all chunks lie in targets of these sizes.
fn check_sizes(table: &MapTable, is_automatic: bool, sizes: &[u64]) -> Result<(), Fault> {
    let chunk = Size(table.chunk());
    let size_of = |target: usize| sizes.get(target).copied().unwrap_or(0);
    for (number, entry) in table.entries().enumerate() {
        let Some(it) = entry else { continue };
        let end = it.chunk.saturating_add(1).saturating_mul(chunk.0);
        if end > size_of(it.target) {
            let fault = is_beyond(number, it, chunk, size_of(it.target));
            return Err(match is_automatic {
                true => Fault { at: Fault::at_key("counts", "").at, ..fault },
                false => fault,
            });
        }
    }
    Ok(())
}

impl<L> Kind<L> for MapOptions<L> {
    const NAME: &'static str = "map";
    const ABOUT: &'static str = "Finds each chunk of the drive by a table: any chunk of any of its targets.";
    const LAYERS: (usize, usize) = (0, LEGS_MAX - 1);

    fn check(&self) -> Result<(), Fault> {
        self.check_chunk()?;
        match &self.chunks {
            Some(chunks) => self.check_table(chunks),
            None => self.check_counts(),
        }
    }

    fn shape(&self) -> Shape {
        let data = format!("map of {} by table {:016x}", self.chunk, self.table().checksum());
        Shape { is_composed: true, is_stateless: true, ..Shape::moved(data) }
    }

    fn layers(&self) -> &[L] {
        &self.layers
    }

    fn layers_mut(&mut self) -> &mut [L] {
        &mut self.layers
    }

    fn open(&self, _: &OpenCx<'_>) -> Result<Prepared, Fault> {
        let (table, is_automatic) = (Arc::new(self.table()), self.chunks.is_none());
        let checked = Arc::clone(&table);
        Ok(Prepared::new(move |targets| Map::new(Arc::clone(&table), targets))
            .fitting(move |sizes| check_sizes(&checked, is_automatic, sizes)))
    }
}
