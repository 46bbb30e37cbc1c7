//! Options and layers of an array.

use super::ParityFunction;
use crate::services::service::check_options;
use crate::services::store::parse_bytes;
use sluice_redundancy::parity::{ArrayConfig, Geometry, array_region_bytes};
use sluice_redundancy::{MEMBERS_MAX, Members};
use sluice_uif::{Below, Options};

pub(super) const NAME: &str = "parity";

/// Bytes of a chunk, and MiB a second of background work while the host works, unless options set others.
const CHUNK: u64 = 64 << 10;
const RATE_MIB: u32 = 64;

/// Options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    parities: usize,
    chunk: u64,
    rate: u64,
    safe_read: bool,
    /// Whether the last member waits behind the array, for a second parity.
    spare: bool,
}

impl Settings {
    pub(super) fn of(options: &Options) -> Result<Self, String> {
        check_options::<ParityFunction>(options)?;
        let parities = match options.get("parity") {
            None | Some("1") => 1,
            Some("2") => 2,
            Some(other) => return Err(format!("parity is 1 or 2, not {}", other.escape_debug())),
        };
        let chunk = options.get("chunk").map_or(Some(CHUNK), parse_bytes);
        let chunk = chunk.ok_or("chunk is a number of bytes, or like 64KiB")?;
        Geometry::new(parities + 2, parities, chunk)?;
        let rate = match options.get("resync_mib_s").map(str::parse::<u32>) {
            None => RATE_MIB,
            Some(Ok(rate)) if rate > 0 => rate,
            Some(_) => return Err("resync_mib_s is a number of MiB a second, from 1".into()),
        };
        let safe_read = match options.get("safe_read") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err("safe_read is true or false".into()),
        };
        let spare = match options.get("spare") {
            None | Some("false") => false,
            Some("true") if parities == 1 => true,
            Some("true") => {
                return Err("spare is for a second parity: remove it, or set parity = \"1\"".into());
            }
            Some(_) => return Err("spare is true or false".into()),
        };
        Ok(Self { parities, chunk, rate: u64::from(rate) << 20, safe_read, spare })
    }

    /// Returns the place of the data, in words.
    pub(super) fn data(&self) -> String {
        format!("parity {} of {} bytes", self.parities, self.chunk)
    }

    /// Returns the shape of a new array. The spare is among the `members`, and not in the shape.
    fn geometry(&self, members: usize) -> Result<Geometry, String> {
        let spares = usize::from(self.spare);
        Geometry::new(members.saturating_sub(spares), self.parities, self.chunk).map_err(|words| {
            match self.spare {
                true => format!("{words} beside the spare"),
                false => words,
            }
        })
    }

    /// Returns the bytes of a drive over layers of these sizes; zero if there can be none.
    pub(super) fn drive_bytes(&self, sizes: &[u64]) -> u64 {
        let members = &sizes[..sizes.len().saturating_sub(1)];
        let least = members.iter().copied().min().unwrap_or_default();
        self.geometry(members.len()).map_or(0, |geometry| geometry.drive_bytes(least))
    }

    /// Returns the shape of an array over these layers: the members, and the log.
    pub(super) fn config(&self, layers: &[Below], id: u64) -> Result<ArrayConfig, String> {
        let Some((log, members)) = layers.split_last() else { return Err("there are no layers".to_owned()) };
        let geometry = self.geometry(members.len())?;
        let block_size = members[0].block_size;
        for (number, member) in members.iter().enumerate() {
            if member.block_size > block_size {
                return Err(format!(
                    "member {number} has blocks of {} bytes, the drive of {block_size}",
                    member.block_size
                ));
            }
        }
        let least = members.iter().map(|member| member.size).min().unwrap_or_default();
        let size = least / self.chunk * self.chunk;
        let is_new = |member: &usize| members[*member].is_new;
        let new = (0..members.len()).filter(is_new);
        Ok(ArrayConfig {
            geometry,
            spares: self.spare.into(),
            size,
            region_bytes: array_region_bytes(size),
            log_bytes: log.size,
            rate: self.rate,
            safe_read: self.safe_read,
            id,
            storage: std::array::from_fn::<_, MEMBERS_MAX, _>(|at| members.get(at).map_or(0, |it| it.id)),
            new: new.fold(Members::NONE, |all, member| all.with(Members::one(member))),
        })
    }
}
