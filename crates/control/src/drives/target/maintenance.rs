//! Resets of the controller behind a target, and its firmware, under the hosts of the drive.
//!
//! Commands are parked over the target meanwhile. The context of the controller is stored before the reset: its
//! identity, its namespaces and their sizes, its queues, its event requests. A controller that comes back as another one
//! keeps its target parked.

use super::{LOOK, PausedTarget, TargetState, TargetView, find_paused, forget, namespace_of};
use crate::drives::events::EventKind;
use crate::drives::{Drives, Entry, Running, lock};
use serde::{Deserialize, Serialize};
use sluice_controller::TRANSITION_SECONDS;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::paths::open_file;
use sluice_spec::{AnaStateName, TargetKind};
use sluice_targets::{Activation, ControllerContext, Maintenance, MaintenanceFault, ResetReport};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Time for the commands that a device has before its reset.
const CLEAR_LIMIT: Duration = Duration::from_secs(10);

/// Time for which hosts may see the Change state (ANATT).
pub(in crate::drives) const CHANGE_LIMIT: Duration = Duration::from_secs(TRANSITION_SECONDS as u64);

/// Bytes of the largest image.
const IMAGE_MAX: u64 = 256 << 20;

/// Seconds until a controller has to be back, unless given.
pub const BACK_S: u32 = 60;

/// The longest such time: the client of the API waits for 300 s.
const BACK_MAX_S: u32 = 180;

/// Firmware for the controller behind a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirmwareOrder {
    /// Image; none to activate the one that is in the slot.
    pub file: Option<PathBuf>,
    /// Firmware slot; 0 for one of the controller's choice.
    pub slot: u8,
    /// Commit action (Base 5.12): 0 stores the image, 1 stores it and activates it by a reset, 2 activates the image of
    /// the slot by a reset, 3 activates it without one.
    pub action: u8,
    /// Seconds until the controller has to be back.
    pub back_s: Option<u32>,
}

/// Outcome of the maintenance of a target's controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MaintenanceView {
    pub drive: String,
    pub nsid: u32,
    pub state: TargetState,
    /// Firmware revision before.
    pub firmware_before: String,
    /// Firmware revision now.
    pub firmware: String,
    /// I/O queues of the controller that were made anew.
    pub queues: u32,
    /// Whether events of the controller are requested again.
    pub requests_events: bool,
    /// Milliseconds that the controller needed by itself: for its shutdown, until it could be reached, and until it was
    /// ready. Commands wait for this time and for `own_ms`.
    pub device_ms: f64,
    /// Milliseconds that the daemon added, from the pause of the target until its commands went on.
    pub own_ms: f64,
    /// Bytes of the image that was downloaded, before commands waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_bytes: Option<u64>,
}

/// An open drive, with the controllers behind the target of a namespace.
type Driven = (Entry, Arc<dyn Running>, Vec<Maintenance>);

/// Times of a reset, and the controller after it.
struct Done {
    device: Duration,
    own: Duration,
    context: ControllerContext,
}

/// Guard of a device that is reset.
struct Maintained<'a> {
    drives: &'a Drives,
    device: Option<String>,
}

impl Drop for Maintained<'_> {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            lock(&self.drives.maintained).remove(device);
        }
    }
}

impl Drives {
    /// Resets the controller behind the target of a namespace. Commands wait meanwhile.
    pub fn reset_target(
        &self,
        name: &str,
        nsid: u32,
        back_s: Option<u32>,
    ) -> Result<MaintenanceView, ApiError> {
        let _only = self.change(name)?;
        let limit = back_limit(back_s)?;
        let (entry, running, controllers) = self.controllers(name, nsid)?;
        let before = save(&controllers)?;
        let done = self.while_parked(&entry, &running, nsid, || reset(&controllers, limit))?;
        let view = self.done(name, nsid, &before, done, None)?;
        let MaintenanceView { device_ms, own_ms, .. } = view;
        let text =
            format!("the controller of namespace {nsid} was reset: device {device_ms} ms, own {own_ms} ms");
        self.events.note(EventKind::TargetReset, name, text);
        Ok(view)
    }

    /// Gives the controller behind the target of a namespace an image, and activates it. Commands wait only for the
    /// activation.
    pub fn update_firmware(
        &self,
        name: &str,
        nsid: u32,
        order: &FirmwareOrder,
    ) -> Result<MaintenanceView, ApiError> {
        let _only = self.change(name)?;
        let limit = back_limit(order.back_s)?;
        let (entry, running, controllers) = self.controllers(name, nsid)?;
        let before = save(&controllers)?;
        let (Some(first), Some(context)) = (controllers.first(), before.first()) else {
            return Err(no_controller());
        };
        check(order, context)?;
        let image = order.file.as_deref().map(read_image).transpose()?;
        if let Some(image) = &image {
            context.check_pieces().map_err(fault)?;
            self.download(name, nsid, first, context, image)?;
        }
        let commit = || first.commit(order.slot, order.action, context.commit_limits);
        let done = match order.action {
            0 => {
                commit().map_err(fault)?;
                Done { device: Duration::ZERO, own: Duration::ZERO, context: context.clone() }
            }
            3 => self.while_parked(&entry, &running, nsid, || {
                let began = Instant::now();
                let activation = commit()?;
                let device = began.elapsed();
                let report = match activation {
                    Activation::ControllerReset => reset(&controllers, limit)?,
                    Activation::Ready => {
                        ResetReport { device: Duration::ZERO, context: compare(&controllers)? }
                    }
                };
                Ok(ResetReport { device: report.device + device, ..report })
            })?,
            _ => {
                commit().map_err(fault)?;
                self.while_parked(&entry, &running, nsid, || reset(&controllers, limit))?
            }
        };
        let view = self.done(name, nsid, &before, done, image.map(|image| image.len() as u64))?;
        let text = format!(
            "the controller of namespace {nsid} has firmware {}, and had {}: device {} ms, own {} ms",
            view.firmware, view.firmware_before, view.device_ms, view.own_ms
        );
        self.events.note(EventKind::FirmwareCommitted, name, text);
        Ok(view)
    }

    /// Returns an open drive with the controllers behind the target of a namespace, one for each path.
    fn controllers(&self, name: &str, nsid: u32) -> Result<Driven, ApiError> {
        let entry = self.entry(name)?;
        let namespace = namespace_of(&entry.spec, nsid)?;
        let running = entry.running.clone()?;
        let controllers = running.maintenance(nsid)?;
        if controllers.is_empty() {
            return Err(no_controller());
        }
        let controllers = controllers.into_iter().map(|it| it.until(&self.ending)).collect();
        if namespace.target == TargetKind::Nvme {
            self.check_shared(name, nsid, running.as_ref())?;
        }
        Ok((entry, running, controllers))
    }

    /// Refuses a device that other namespaces use, unless all of them are paused and idle.
    fn check_shared(&self, name: &str, nsid: u32, running: &dyn Running) -> Result<(), ApiError> {
        let devices = running.devices();
        let Some(own) = devices.iter().find(|device| device.nsid == nsid) else { return Ok(()) };
        let is_twice =
            devices.iter().filter(|device| device.nsid == nsid && device.device == own.device).count() > 1;
        let saved = self.saved();
        let in_use = |other: &str, running: &dyn Running| {
            let devices = running.devices();
            let mut users = devices.iter().filter(|device| device.device == own.device).map(|it| it.nsid);
            users.find(|of| {
                let is_idle = || running.is_target_idle(*of).unwrap_or(false);
                let is_parked = find_paused(&saved, other, *of).is_some() && is_idle();
                let is_own = other == name && *of == nsid && !is_twice;
                !is_own && !is_parked
            })
        };
        let entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        for Entry { spec, running, .. } in entries {
            let (other, Ok(running)) = (spec.name, running) else { continue };
            if let Some(of) = in_use(&other, running.as_ref()) {
                return Err(ApiError::conflict(format!(
                    "namespace {of} of drive `{other}` is on the same device {}",
                    own.device
                ))
                .hint(format!("pause it first: `sluice target pause {other}:{of}`")));
            }
        }
        Ok(())
    }

    /// Downloads an image in pieces. Commands of hosts go on meanwhile.
    fn download(
        &self,
        name: &str,
        nsid: u32,
        controller: &Maintenance,
        context: &ControllerContext,
        image: &[u8],
    ) -> Result<(), ApiError> {
        let note = |tenths: usize| {
            let text = format!("firmware for namespace {nsid}: {} % of {} bytes", tenths * 10, image.len());
            self.events.note(EventKind::FirmwareProgress, name, text);
        };
        note(0);
        let mut noted = 0;
        for (number, piece) in image.chunks(context.piece).enumerate() {
            self.may_change()?;
            let offset = number * context.piece;
            let sent = controller.download(offset as u32, piece.to_vec());
            sent.map_err(|why| fault(why).about(&format!("the piece at byte {offset}")))?;
            let tenths = (offset + piece.len()) * 10 / image.len();
            if tenths > noted {
                noted = tenths;
                note(tenths);
            }
        }
        Ok(())
    }

    /// Parks the commands of a target, waits until it is idle, calls `act`, and lets the commands go on. After a reset
    /// that failed, they stay parked, also after a restart of the daemon.
    fn while_parked(
        &self,
        entry: &Entry,
        running: &Arc<dyn Running>,
        nsid: u32,
        act: impl FnOnce() -> Result<ResetReport, MaintenanceFault>,
    ) -> Result<Done, ApiError> {
        let name = &entry.spec.name;
        // Another drive may have resumed its target on the device since the first check.
        let _maintained = self.maintain(entry, nsid, running.as_ref())?;
        let was_paused = find_paused(&self.saved(), name, nsid).is_some();
        let resume =
            || if was_paused { Ok(()) } else { self.end_moment(&entry.spec, running.as_ref(), nsid) };
        let began = Instant::now();
        if !was_paused {
            self.pause_for_a_moment(entry, running.as_ref(), nsid)?;
        }
        loop {
            if let Err(ends) = self.may_change() {
                resume()?;
                return Err(ends);
            }
            match running.is_target_idle(nsid) {
                Ok(true) => break,
                Ok(false) => {}
                Err(problem) => {
                    resume()?;
                    return Err(problem);
                }
            }
            if began.elapsed() > CLEAR_LIMIT {
                resume()?;
                return Err(ApiError::conflict(format!(
                    "commands of namespace {nsid} of drive `{name}` are still in its target"
                ))
                .hint("try again with less load, or `sluice target replace`"));
            }
            std::thread::sleep(LOOK);
        }
        let acted = match was_paused {
            true => act(),
            // Hosts have seen the Change state since the pause.
            false => {
                let limit = self.change_limit.saturating_sub(began.elapsed());
                self.while_changing(entry, running.as_ref(), nsid, limit, act)
            }
        };
        match acted {
            Ok(ResetReport { device, context }) => {
                resume()?;
                Ok(Done { device, own: began.elapsed().saturating_sub(device), context })
            }
            // The end of the daemon flushes the drive, as soon as the controller is back.
            Err(why @ MaintenanceFault::Ending { .. }) => {
                resume()?;
                Err(fault(why))
            }
            Err(why) if why.is_after_reset() => {
                if !was_paused {
                    self.keep_parked(entry, running.as_ref(), nsid, &why)?;
                }
                Err(fault(why).hint(
                    "commands wait: put the controller right and `sluice target resume`, or `sluice target replace`",
                ))
            }
            Err(why) => {
                resume()?;
                Err(fault(why))
            }
        }
    }

    /// Keeps the commands of a target parked after a reset that failed. That applies even if the pause cannot be stored
    /// now.
    pub(super) fn keep_parked(
        &self,
        entry: &Entry,
        running: &dyn Running,
        nsid: u32,
        why: &MaintenanceFault,
    ) -> Result<(), ApiError> {
        let name = &entry.spec.name;
        let paused = PausedTarget { drive: name.clone(), nsid, fail_after_s: None };
        self.note_owed(|saved| {
            forget(saved, name, nsid);
            saved.paused_targets.push(paused);
        });
        let text = format!("the target of namespace {nsid} stays paused: {why}");
        self.events.note(EventKind::TargetPaused, name, text);
        self.show_absence(&entry.spec, running, nsid, Some(AnaStateName::Inaccessible))
    }

    /// Calls `act` while hosts see the Change state. Once `limit` is over they see Inaccessible, since they give the path
    /// up for good otherwise.
    pub(super) fn while_changing<T>(
        &self,
        entry: &Entry,
        running: &dyn Running,
        nsid: u32,
        limit: Duration,
        act: impl FnOnce() -> T,
    ) -> T {
        if !entry.spec.answers_by_ana() {
            return act();
        }
        let (over, is_over) = channel::<()>();
        let watch = move || {
            if is_over.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let state = Some(AnaStateName::Inaccessible);
            if let Err(problem) = self.show_absence(&entry.spec, running, nsid, state) {
                let problem = problem.in_one_line();
                tracing::warn!("drive {}: hosts still see the Change state: {problem}", entry.spec.name);
            }
        };
        std::thread::scope(|threads| {
            let watched =
                std::thread::Builder::new().name("ana-change".to_owned()).spawn_scoped(threads, watch);
            if let Err(error) = watched {
                tracing::warn!("cannot start a thread: {error}: hosts see the Change state until the end");
            }
            let done = act();
            drop(over);
            done
        })
    }

    /// Marks the device of a namespace as being reset, unless another namespace uses it. No target on it is resumed until
    /// the guard is dropped.
    fn maintain(&self, entry: &Entry, nsid: u32, running: &dyn Running) -> Result<Maintained<'_>, ApiError> {
        let namespace = namespace_of(&entry.spec, nsid)?;
        let mut maintained = lock(&self.maintained);
        if namespace.target != TargetKind::Nvme {
            return Ok(Maintained { drives: self, device: None });
        }
        self.check_shared(&entry.spec.name, nsid, running)?;
        let device = running.devices().into_iter().find(|it| it.nsid == nsid).map(|it| it.device);
        if let Some(device) = &device
            && !maintained.insert(device.clone())
        {
            return Err(ApiError::conflict(format!("{device} is being reset already")));
        }
        Ok(Maintained { drives: self, device })
    }

    fn done(
        &self,
        name: &str,
        nsid: u32,
        before: &[ControllerContext],
        done: Done,
        image_bytes: Option<u64>,
    ) -> Result<MaintenanceView, ApiError> {
        let TargetView { state, .. } = self.target(name, nsid)?;
        let firmware_before = before.first().map(|context| context.firmware.clone()).unwrap_or_default();
        let ControllerContext { firmware, queues, requests_events, .. } = done.context;
        tracing::info!(drive = name, nsid, firmware, "the controller of a target is in use again");
        Ok(MaintenanceView {
            drive: name.to_owned(),
            nsid,
            state,
            firmware_before,
            firmware,
            queues,
            requests_events,
            device_ms: milliseconds(done.device),
            own_ms: milliseconds(done.own),
            image_bytes,
        })
    }
}

/// Checks an order against the slots of the controller.
fn check(order: &FirmwareOrder, context: &ControllerContext) -> Result<(), ApiError> {
    let FirmwareOrder { file, slot, action, .. } = order;
    let invalid = |text: String, hint: &str| Err(ApiError::invalid(text).hint(hint));
    if !context.has_firmware_commands {
        return invalid(
            "the controller has no firmware commands (OACS)".to_owned(),
            "use the tool of its vendor",
        );
    }
    match (action, file) {
        (0 | 1, None) => {
            return invalid(format!("action {action} stores an image"), "name it with --file");
        }
        (2, Some(_)) => {
            return invalid("action 2 activates the image of a slot".to_owned(), "leave --file out");
        }
        (2 | 3, _) if *slot == 0 => {
            return invalid(format!("action {action} needs a slot"), "name it with --slot");
        }
        (0..=3, _) => {}
        _ => return invalid(format!("{action} is no commit action"), "name 0, 1, 2 or 3"),
    }
    if *slot > context.slots.max(1) {
        let (slots, text) = (context.slots.max(1), format!("the controller has no firmware slot {slot}"));
        return invalid(text, &format!("its slots are 1 to {slots}"));
    }
    Ok(())
}

fn read_image(path: &Path) -> Result<Vec<u8>, ApiError> {
    let about = |problem: ApiError| problem.about(&format!("the image {}", path.display()));
    let read = || {
        let mut image = Vec::new();
        open_file(path)?.take(IMAGE_MAX + 1).read_to_end(&mut image)?;
        Ok(image)
    };
    let image = read().map_err(|error: io::Error| about(ApiError::invalid(error.to_string())))?;
    match image.len() {
        length if length > 0 && length as u64 <= IMAGE_MAX && length.is_multiple_of(4) => Ok(image),
        _ => {
            let most = IMAGE_MAX >> 20;
            let text = format!("its length is no multiple of 4 from 4 bytes to {most} MiB");
            Err(about(ApiError::invalid(text)).hint("name the file that the vendor has delivered"))
        }
    }
}

fn save(controllers: &[Maintenance]) -> Result<Vec<ControllerContext>, ApiError> {
    controllers.iter().map(|controller| controller.save().map_err(fault)).collect()
}

/// Resets one controller after the other. Returns the time of all of them, and the context of the first.
fn reset(controllers: &[Maintenance], limit: Duration) -> Result<ResetReport, MaintenanceFault> {
    let reports: Vec<ResetReport> =
        controllers.iter().map(|controller| controller.reset(limit)).collect::<Result<_, _>>()?;
    let device = reports.iter().map(|report| report.device).sum();
    let first = reports.into_iter().next().ok_or(MaintenanceFault::Gone)?;
    Ok(ResetReport { device, ..first })
}

fn compare(controllers: &[Maintenance]) -> Result<ControllerContext, MaintenanceFault> {
    let contexts: Vec<ControllerContext> =
        controllers.iter().map(Maintenance::compare).collect::<Result<_, _>>()?;
    contexts.into_iter().next().ok_or(MaintenanceFault::Gone)
}

fn back_limit(back_s: Option<u32>) -> Result<Duration, ApiError> {
    match back_s.unwrap_or(BACK_S) {
        seconds @ 1..=BACK_MAX_S => Ok(Duration::from_secs(seconds.into())),
        _ => Err(ApiError::invalid(format!("a controller is waited for 1 to {BACK_MAX_S} s"))),
    }
}

fn fault(why: MaintenanceFault) -> ApiError {
    let kind = match why {
        MaintenanceFault::Ending { .. } => Kind::Unavailable,
        _ => Kind::Conflict,
    };
    ApiError::new(kind, why.to_string()).about("the controller")
}

fn no_controller() -> ApiError {
    ApiError::conflict("the target is on no controller that this daemon drives")
        .hint("targets of the kinds `nvme` (without `generic`) and `nvme-tcp` have one")
}

/// Returns milliseconds with a digit after the point.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_targets::CommitLimits;

    fn context() -> ControllerContext {
        ControllerContext {
            firmware: "1".to_owned(),
            slots: 2,
            is_first_read_only: true,
            has_firmware_commands: true,
            piece: 4096,
            piece_max: 8192,
            commit_limits: CommitLimits { answer: Duration::from_secs(1), busy: Duration::from_secs(1) },
            queues: 1,
            namespaces: 1,
            requests_events: true,
        }
    }

    #[test]
    fn an_order_fits_its_action_and_the_slots() {
        let order = |file: bool, slot, action| FirmwareOrder {
            file: file.then(|| PathBuf::from("image")),
            slot,
            action,
            back_s: None,
        };
        let is_fine = |file, slot, action| check(&order(file, slot, action), &context()).is_ok();
        assert!(is_fine(true, 0, 0) && is_fine(true, 2, 1) && is_fine(false, 1, 2));
        assert!(is_fine(true, 1, 3) && is_fine(false, 1, 3));
        for (file, slot, action) in [(false, 1, 1), (true, 1, 2), (false, 0, 2), (true, 3, 1), (true, 1, 4)] {
            assert!(!is_fine(file, slot, action), "{file} {slot} {action}");
        }
        let without = ControllerContext { has_firmware_commands: false, ..context() };
        assert!(check(&order(true, 1, 1), &without).is_err());
    }

    #[test]
    fn a_controller_is_not_waited_for_without_end() {
        assert_eq!(back_limit(None).ok(), Some(Duration::from_secs(60)));
        assert!(back_limit(Some(0)).is_err() && back_limit(Some(181)).is_err());
    }

    #[test]
    fn an_image_has_whole_dwords() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        for (bytes, is_one) in [(0, false), (6, false), (8, true)] {
            std::fs::write(&path, vec![1; bytes]).expect("room on the disk");
            assert_eq!(read_image(&path).is_ok(), is_one, "{bytes}");
        }
        assert!(read_image(folder.path()).is_err(), "a folder");
        assert!(read_image(&folder.path().join("none")).is_err());
    }
}
