//! Source lines from `.BTF.ext`, for messages.

use super::btf::{Btf, Reader};
use super::{Placed, broken};
use crate::decode::Slot;
use crate::error::{LoadError, SourceLine};

const MAGIC: u16 = 0xeb9f;
/// Bytes of a line record that are read; newer versions may add some behind.
const RECORD_BYTES: usize = 16;

/// Reads the lines of the sections that were placed.
pub(super) fn read(
    bytes: &[u8],
    btf: &Btf<'_>,
    placed: &[Placed],
    lines: &mut Vec<(usize, SourceLine)>,
) -> Result<(), LoadError> {
    let part = line_part(bytes).ok_or_else(|| broken("its line information (.BTF.ext) is malformed"))?;
    read_part(part, btf, placed, lines)
        .ok_or_else(|| broken("its line information (.BTF.ext) is malformed"))?;
    lines.sort_by_key(|(slot, _)| *slot);
    Ok(())
}

fn line_part(bytes: &[u8]) -> Option<&[u8]> {
    let mut header = Reader(bytes);
    if header.u16()? != MAGIC {
        return None;
    }
    header.skip(2)?;
    let start = header.u32()? as usize;
    // First come offset and length of the function information.
    header.skip(8)?;
    let (at, len) = (header.u32()? as usize, header.u32()?);
    Reader::part(bytes, start.checked_add(at)?, len)
}

fn read_part(
    part: &[u8],
    btf: &Btf<'_>,
    placed: &[Placed],
    lines: &mut Vec<(usize, SourceLine)>,
) -> Option<()> {
    let mut reader = Reader(part);
    if reader.0.is_empty() {
        return Some(());
    }
    let record = reader.u32()? as usize;
    let extra = record.checked_sub(RECORD_BYTES)?;
    // There is at most one line for each slot.
    let most: usize = placed.iter().map(|placed| placed.slots).sum();
    while !reader.0.is_empty() {
        let (section, count) = (btf.string(reader.u32()?), reader.u32()?);
        let placed = placed.iter().find(|placed| placed.name == section);
        for _ in 0..count {
            let (offset, file, text, column) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
            reader.skip(extra)?;
            let slot = offset as usize / Slot::SIZE;
            // The column is in the lower ten bits. Line 0 marks an instruction that the compiler added: it is
            // taken for one of the line before.
            let number = column >> 10;
            if number == 0 {
                continue;
            }
            if let Some(placed) = placed.filter(|placed| slot < placed.slots && lines.len() < most) {
                let line = SourceLine {
                    file: file_name(btf.string(file)).to_owned(),
                    line: number,
                    text: btf.string(text).trim().to_owned(),
                };
                lines.push((placed.start + slot, line));
            }
        }
    }
    Some(())
}

/// Returns a path without the directories of the machine that compiled it.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
