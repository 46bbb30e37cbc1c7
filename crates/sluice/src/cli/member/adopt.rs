//! `sluice member adopt`: labels the members of a set that was made without labels.

use super::view::View;
use clap::Args;
use sluice_metadata::{Device, Found, Label, Member, Role, SetKind, Shape, form};
use sluice_spec::SetSpec;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_targets::storage_at;
use sluice_wiring::label_problem as problem;
use std::path::PathBuf;

/// Set to label: by its drive in a configuration, or by its kind and its members.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["drive", "kind"]))]
pub(crate) struct Adopt {
    /// Configuration file with the drive
    #[arg(short, long, value_name = "FILE", requires = "drive")]
    config: Option<PathBuf>,
    /// Name of the drive whose sets get labels
    #[arg(long, value_name = "NAME", requires = "config", conflicts_with = "paths")]
    drive: Option<String>,
    /// Kind of the set: stripe, concat, mirror, replicate or parity
    #[arg(long, value_parser = kind, requires = "paths")]
    kind: Option<SetKind>,
    /// Bytes of a chunk of a stripe
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    chunk: Size,
    /// Size of each member, if the configuration gives one; the length of the device if not given
    #[arg(long, conflicts_with = "drive")]
    size: Option<Size>,
    /// Log of a mirror, replicate or parity
    #[arg(long, value_name = "PATH", requires = "kind")]
    log: Option<PathBuf>,
    /// Size of the log, if the configuration gives one
    #[arg(long, value_name = "SIZE", requires = "log")]
    log_size: Option<Size>,
    /// Members, in the order of the configuration: the target of the namespace first
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

fn kind(text: &str) -> Result<SetKind, String> {
    SetKind::named(text).ok_or_else(|| "use stripe, concat, mirror, replicate or parity".to_owned())
}

/// Set to label.
struct Wanted {
    shape: Shape,
    places: Vec<Wish>,
}

/// Device to label.
struct Wish {
    path: PathBuf,
    role: Role,
    size: Option<Size>,
    block_size: u32,
}

impl Adopt {
    /// Labels the set. Returns its members.
    pub(super) fn run(self) -> Result<Vec<View>, ApiError> {
        let sets = match (&self.config, &self.drive) {
            (Some(config), Some(drive)) => declared(config, drive)?,
            _ => vec![self.described()?],
        };
        let claimed = sets.iter().map(Wanted::claim).collect::<Result<Vec<_>, _>>()?;
        for (set, devices) in sets.iter().zip(&claimed) {
            set.label(devices)?;
        }
        drop(claimed);
        sets.iter().flat_map(|set| &set.places).map(|place| View::of(&place.path)).collect()
    }

    /// Returns the set that the command line describes.
    fn described(self) -> Result<Wanted, ApiError> {
        let kind = self.kind.ok_or_else(|| ApiError::invalid("no kind is given"))?;
        if kind.is_redundant() != self.log.is_some() {
            return Err(ApiError::invalid(format!(
                "a {} {}",
                kind.name(),
                match kind.is_redundant() {
                    true => "has a log",
                    false => "has no log",
                }
            ))
            .hint("name the log of a mirror, replicate or parity with --log"));
        }
        if self.paths.len() < 2 {
            return Err(
                ApiError::invalid("one device alone is no set").hint("name all members in their order")
            );
        }
        let wish = |(path, role, size)| Wish { path, role, size, block_size: 512 };
        let members = self.paths.into_iter().enumerate();
        let members = members.map(|(index, path)| (path, Role::Data(index), self.size));
        let log = self.log.map(|path| (path, Role::Log, self.log_size));
        let chunk = if kind == SetKind::Stripe { self.chunk.0 } else { 0 };
        Ok(Wanted { shape: Shape { kind, chunk }, places: members.chain(log).map(wish).collect() })
    }
}

/// Returns the sets of a declared drive.
fn declared(config: &std::path::Path, drive: &str) -> Result<Vec<Wanted>, ApiError> {
    let config = sluice_control::config::load(config)?;
    let found = config.drives.iter().find(|it| it.name == drive).ok_or_else(|| {
        ApiError::not_found(format!("{} declares no drive `{drive}`", config.file.display()))
            .hint("name the members of a drive that was created with --kind and their paths")
    })?;
    let sets: Vec<SetSpec> = found.stacks().iter().flat_map(|stack| stack.spec.sets()).collect();
    if sets.is_empty() {
        return Err(ApiError::invalid(format!(
            "drive `{drive}` has no stripe, concat, mirror, replicate or parity"
        )));
    }
    sets.into_iter().map(|set| wanted(set, drive)).collect()
}

fn wanted(set: SetSpec, drive: &str) -> Result<Wanted, ApiError> {
    if set.labels == Some(false) {
        return Err(ApiError::conflict(format!("the {} of drive `{drive}` has labels = false", set.kind))
            .hint("remove that from the configuration"));
    }
    let places = set.places.map_err(|why| {
        ApiError::conflict(format!("the {} of drive `{drive}` cannot have labels: {why}", set.kind))
    })?;
    let kind = SetKind::named(set.kind).ok_or_else(|| ApiError::internal("a set of an unknown kind"))?;
    let wish = |(index, place): (usize, sluice_spec::PlaceSpec)| Wish {
        path: place.path,
        role: if place.is_log { Role::Log } else { Role::Data(index) },
        size: place.size,
        block_size: place.block_size,
    };
    let places = places.into_iter().enumerate().map(wish).collect();
    Ok(Wanted { shape: Shape { kind, chunk: set.chunk }, places })
}

impl Wanted {
    /// Locks all devices, and checks that none has a label and each has room for one. Writes nothing.
    fn claim(&self) -> Result<Vec<Device>, ApiError> {
        let mut devices = Vec::new();
        for place in &self.places {
            let device = Device::claim(&place.path).map_err(problem)?;
            let path = place.path.display();
            let found = match device.copies().map_err(problem)?.found() {
                // The first copy alone is at the end of a file if its labelling was interrupted.
                Found::Missing => device.found().map_err(problem)?,
                found => found,
            };
            match found {
                Found::Missing => {}
                // An adoption that was interrupted is repeated. A disk that `sluice member replace` labelled belongs
                // to another set.
                Found::Label(label) if self.is_interrupted(&label, place.role) => {}
                Found::Label(label) => {
                    let (role, member, set) = (label.role, label.member, label.set);
                    return Err(ApiError::conflict(format!(
                        "{path} has a label: it is {role}, {member}, of set {set}"
                    ))
                    .hint("nothing was written; `sluice member inspect` shows the labels"));
                }
                Found::Damaged | Found::Unsupported(_) => {
                    return Err(ApiError::conflict(format!("{path} has a label that cannot be used"))
                        .hint("nothing was written; `sluice member inspect` shows the labels"));
                }
            }
            let bytes = device.bytes().map_err(problem)?;
            if let Some(size) = place.size.filter(|size| size.0 > bytes && !device.is_hole()) {
                let words = format!("{path} has {bytes} bytes, and the configuration gives it {}", size.0);
                return Err(
                    ApiError::conflict(words).hint("nothing was written; bring the right device back")
                );
            }
            let data_bytes = place.data_bytes(&device)?;
            if data_bytes == 0 {
                return Err(
                    ApiError::conflict(format!("{path} is empty, and has no size")).hint("give its size")
                );
            }
            device.has_room(data_bytes).map_err(problem)?;
            devices.push(device);
        }
        Ok(devices)
    }

    /// Returns whether the label can be from an adoption of this set that was interrupted.
    fn is_interrupted(&self, label: &Label, role: Role) -> bool {
        let members = self.places.iter().filter(|place| place.role != Role::Log).count();
        let is_own = label.kind == self.shape.kind && label.chunk == self.shape.chunk && label.role == role;
        label.epoch == 0 && is_own && label.members.len() == members
    }

    fn label(&self, devices: &[Device]) -> Result<(), ApiError> {
        let mut members = Vec::new();
        for (device, place) in devices.iter().zip(&self.places) {
            let storage =
                storage_at(&place.path).map_err(|error| ApiError::io("examine", &place.path, &error))?;
            let data_bytes = place.data_bytes(device)?;
            members.push(Member { device, role: place.role, data_bytes, storage: storage.id });
        }
        form(&self.shape, &members).map(drop).map_err(problem)
    }
}

impl Wish {
    /// Returns the bytes that a drive shows of this device.
    fn data_bytes(&self, device: &Device) -> Result<u64, ApiError> {
        let bytes = match device.found().map_err(problem)? {
            Found::Label(label) => label.data_bytes,
            _ => device.bytes().map_err(problem)?,
        };
        Ok(self.size.map_or(bytes - bytes % u64::from(self.block_size), |size| size.0))
    }
}
