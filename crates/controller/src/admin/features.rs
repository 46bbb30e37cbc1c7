//! Set Features and Get Features (Base 5.27, 5.15).

use crate::admin::{Answer, Outcome, reservation};
use crate::model::request::Admin;
use crate::model::{Controller, Subsystem};
use crate::state::copy;
use crate::state::events::{Configuration, Event};
use crate::state::features::{Features, Thresholds};
use sluice_nvme::feature::{HostBehavior, Select, TimestampData, capabilities};
use sluice_nvme::{FeatureId, NSID_ALL, Status, feature};
use zerocopy::IntoBytes;

/// Scope of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Controller,
    Namespace,
}

/// Supported features: all of them changeable, none saveable.
const FEATURES: [(FeatureId, Scope); 16] = [
    (FeatureId::ARBITRATION, Scope::Controller),
    (FeatureId::POWER_MANAGEMENT, Scope::Controller),
    (FeatureId::TEMPERATURE_THRESHOLD, Scope::Controller),
    (FeatureId::ERROR_RECOVERY, Scope::Namespace),
    (FeatureId::VOLATILE_WRITE_CACHE, Scope::Controller),
    (FeatureId::NUMBER_OF_QUEUES, Scope::Controller),
    (FeatureId::INTERRUPT_COALESCING, Scope::Controller),
    (FeatureId::INTERRUPT_VECTOR, Scope::Controller),
    (FeatureId::WRITE_ATOMICITY, Scope::Controller),
    (FeatureId::ASYNC_EVENTS, Scope::Controller),
    (FeatureId::TIMESTAMP, Scope::Controller),
    (FeatureId::KEEP_ALIVE_TIMER, Scope::Controller),
    (FeatureId::HOST_BEHAVIOR, Scope::Controller),
    (FeatureId::HOST_IDENTIFIER, Scope::Controller),
    (FeatureId::RESERVATION_NOTIFICATION_MASK, Scope::Namespace),
    (FeatureId::RESERVATION_PERSISTENCE, Scope::Namespace),
];

/// Returns whether a feature is one of reservations.
pub(crate) fn is_of_reservations(id: FeatureId) -> bool {
    const THEM: [FeatureId; 3] = [
        FeatureId::HOST_IDENTIFIER,
        FeatureId::RESERVATION_NOTIFICATION_MASK,
        FeatureId::RESERVATION_PERSISTENCE,
    ];
    THEM.contains(&id)
}

/// Returns the features of this controller. Without a volatile write cache there is no feature for it (Base
/// 5.27.1.4).
pub(super) fn supported(subsystem: &Subsystem) -> impl Iterator<Item = (FeatureId, Scope)> {
    let cached = subsystem.has_volatile_cache();
    FEATURES.into_iter().filter(move |(id, _)| cached || *id != FeatureId::VOLATILE_WRITE_CACHE)
}

/// Returns the feature that a command names, and its scope.
fn named(subsystem: &Subsystem, admin: &Admin<'_>) -> Result<(FeatureId, Scope), Status> {
    let id = FeatureId(admin.entry.cdw10 as u8);
    supported(subsystem).find(|(found, _)| *found == id).ok_or(Status::INVALID_FIELD)
}

/// Executes a Set Features. Returns the current value in dword 0 for features that define it.
pub(crate) fn set(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    let (id, scope) = named(subsystem, admin)?;
    if admin.entry.cdw10 & feature::SAVE != 0 {
        return Err(Status::FEATURE_NOT_SAVEABLE);
    }
    check_nsid(controller, subsystem, admin.entry.nsid, scope)?;
    let value = admin.entry.cdw11;
    match id {
        id if is_of_reservations(id) => return reservation::set(controller, subsystem, admin, id),
        FeatureId::VOLATILE_WRITE_CACHE => return Ok(set_write_cache(controller, value & 1 != 0)),
        FeatureId::NUMBER_OF_QUEUES => return set_number_of_queues(controller, value),
        FeatureId::ASYNC_EVENTS => controller.configure_events(Configuration(value)),
        FeatureId::TEMPERATURE_THRESHOLD => set_temperature_threshold(controller, value)?,
        FeatureId::ERROR_RECOVERY => set_error_recovery(controller, admin.entry.nsid, value)?,
        FeatureId::INTERRUPT_VECTOR => {
            let vector = vector(controller, value)?;
            controller.disable_coalescing(vector, value & 1 << 16 != 0, admin.now_ns);
        }
        FeatureId::INTERRUPT_COALESCING => {
            controller.set_interrupt_coalescing(value, admin.now_ns);
        }
        FeatureId::TIMESTAMP => {
            let mut timestamp = TimestampData::default();
            admin.take_from_host(timestamp.as_mut_bytes())?;
            let previous = controller.features.timestamp(admin.now_ns);
            controller.features.set_timestamp(timestamp, admin.now_ns);
            controller.note_timestamp(subsystem, previous, admin.now_ns);
        }
        FeatureId::HOST_BEHAVIOR => set_host_behavior(controller, admin)?,
        FeatureId::KEEP_ALIVE_TIMER => controller.features.set_keep_alive(value, admin.now_ns),
        _ => set_plain(&mut controller.features, id, value)?,
    }
    Ok(Outcome::Done(0))
}

/// Checks the NSID: only namespace features have one. There, the broadcast NSID means every namespace.
fn check_nsid(controller: &Controller, subsystem: &Subsystem, nsid: u32, scope: Scope) -> Result<(), Status> {
    let active = subsystem.active(controller.number(), nsid).is_some();
    match scope {
        Scope::Namespace if active || nsid == NSID_ALL => Ok(()),
        Scope::Controller if nsid == 0 || nsid == NSID_ALL => Ok(()),
        Scope::Controller if active => Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC),
        _ => Err(Subsystem::status_of_inactive(nsid)),
    }
}

/// Sets a feature whose value is only stored.
fn set_plain(features: &mut Features, id: FeatureId, value: u32) -> Result<(), Status> {
    const POWER_STATE: u32 = 0x1f;
    match id {
        FeatureId::ARBITRATION => features.arbitration = value & 0xffff_ff07,
        FeatureId::POWER_MANAGEMENT if value & POWER_STATE != 0 => return Err(Status::INVALID_FIELD),
        FeatureId::POWER_MANAGEMENT => features.power_management = value & 0xff,
        FeatureId::WRITE_ATOMICITY => features.write_atomicity = value & 1,
        _ => return Err(Status::INVALID_FIELD),
    }
    Ok(())
}

/// Executes Number of Queues, before the first I/O queue only. A request for 65,536 queues is invalid (Base
/// 5.27.1.5).
fn set_number_of_queues(controller: &Controller, value: u32) -> Answer {
    let has_io_queues = controller.sqs.iter().skip(1).any(Option::is_some)
        || controller.cqs.iter().skip(1).any(Option::is_some);
    if has_io_queues {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    }
    if value as u16 == u16::MAX || value >> 16 == u32::from(u16::MAX) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(Outcome::Done(number_of_queues(controller)))
}

/// Returns the number of queues for both kinds, 0's based.
fn number_of_queues(controller: &Controller) -> u32 {
    let count = u32::from(controller.io_queues()) - 1;
    count << 16 | count
}

fn set_temperature_threshold(controller: &mut Controller, value: u32) -> Result<(), Status> {
    const EVERY_SENSOR: u32 = 0xf;
    let sensor = value >> 16 & 0xf;
    if sensor != EVERY_SENSOR {
        check_sensor(value)?;
    }
    *threshold_mut(&mut controller.features.temperature, value)? = value as u16;
    if controller.features.temperature.are_passed() {
        controller.raise(Event::TEMPERATURE_THRESHOLD);
    }
    Ok(())
}

/// Checks the sensor: there is the composite temperature and no other sensor.
fn check_sensor(value: u32) -> Result<(), Status> {
    if value >> 16 & 0xf == 0 { Ok(()) } else { Err(Status::INVALID_FIELD) }
}

/// Returns the threshold that THSEL selects.
fn threshold_mut(thresholds: &mut Thresholds, value: u32) -> Result<&mut u16, Status> {
    match value >> 20 & 3 {
        0 => Ok(&mut thresholds.over),
        1 => Ok(&mut thresholds.under),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Sets Error Recovery. Deallocated or Unwritten Logical Block errors are not offered (NSFEAT.DAE = 0).
fn set_error_recovery(controller: &mut Controller, nsid: u32, value: u32) -> Result<(), Status> {
    const DULBE: u32 = 1 << 16;
    if value & DULBE != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let limits = &mut controller.features.retry_limits;
    match nsid {
        NSID_ALL => limits.fill(value as u16),
        _ => limits[nsid as usize - 1] = value as u16,
    }
    Ok(())
}

fn vector(controller: &Controller, value: u32) -> Result<u16, Status> {
    let vector = value as u16;
    if vector < controller.vectors() { Ok(vector) } else { Err(Status::INVALID_FIELD) }
}

/// Sets Host Behavior Support. The LBA formats that it could enable do not exist (CTRATT.ELBAS = 0).
fn set_host_behavior(controller: &mut Controller, admin: &Admin<'_>) -> Result<(), Status> {
    let mut behavior = HostBehavior::default();
    admin.take_from_host(behavior.as_mut_bytes())?;
    let unknown_formats = behavior.cdfe & !(1 << copy::NAMED) != 0;
    if behavior.acre > 1 || behavior.etdas > 1 || behavior.lbafee != 0 || unknown_formats {
        return Err(Status::INVALID_FIELD);
    }
    let HostBehavior { acre, etdas, cdfe, .. } = behavior;
    controller.features.host_behavior = HostBehavior::new(acre, etdas, cdfe);
    Ok(())
}

/// Enables or disables the write cache. From then on writes without cache are durable when they finish. A
/// disabling command finishes after the cached data is durable, too.
fn set_write_cache(controller: &mut Controller, enable: bool) -> Outcome {
    let was_enabled = controller.features.write_cache_enabled();
    controller.features.enable_write_cache(enable);
    if was_enabled && !enable { Outcome::AfterFlush } else { Outcome::Done(0) }
}

/// Restarts the timer for a Keep Alive (Base 5.18).
pub(crate) fn keep_alive(controller: &mut Controller, admin: &Admin<'_>) -> Answer {
    controller.features.note_activity(admin.now_ns);
    Ok(Outcome::Done(0))
}

pub(crate) fn get(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    let (id, scope) = named(subsystem, admin)?;
    match Select((admin.entry.cdw10 >> 8 & 7) as u8) {
        select @ (Select::CURRENT | Select::DEFAULT | Select::SAVED) if is_of_reservations(id) => {
            reservation::get(controller, subsystem, admin, id, select == Select::CURRENT)
        }
        Select::CURRENT => {
            let values = Values { features: &controller.features, events: controller.event_configuration() };
            values.get(controller, subsystem, admin, id)
        }
        // An unsaveable feature has its default as the saved value.
        Select::DEFAULT | Select::SAVED => {
            let mut defaults = Features::new();
            defaults.enabled(admin.now_ns);
            let values = Values { features: &defaults, events: Configuration::DEFAULT };
            values.get(controller, subsystem, admin, id)
        }
        Select::SUPPORTED_CAPABILITIES => Ok(Outcome::Done(match scope {
            Scope::Controller => capabilities::CHANGEABLE,
            Scope::Namespace => capabilities::CHANGEABLE | capabilities::NAMESPACE_SPECIFIC,
        })),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Values for the reply: the current ones, or the defaults.
struct Values<'a> {
    features: &'a Features,
    events: Configuration,
}

impl Values<'_> {
    fn get(
        &self,
        controller: &Controller,
        subsystem: &Subsystem,
        admin: &Admin<'_>,
        id: FeatureId,
    ) -> Answer {
        match id {
            FeatureId::TIMESTAMP => admin.to_host(self.features.timestamp(admin.now_ns).as_bytes())?,
            FeatureId::HOST_BEHAVIOR => admin.to_host(self.features.host_behavior.as_bytes())?,
            _ => return self.dword(controller, subsystem, admin, id).map(Outcome::Done),
        }
        Ok(Outcome::Done(0))
    }

    /// Returns the value of a feature that has no data.
    fn dword(
        &self,
        controller: &Controller,
        subsystem: &Subsystem,
        admin: &Admin<'_>,
        id: FeatureId,
    ) -> Result<u32, Status> {
        let features = self.features;
        let requested = admin.entry.cdw11;
        Ok(match id {
            FeatureId::ARBITRATION => features.arbitration,
            FeatureId::POWER_MANAGEMENT => features.power_management,
            FeatureId::TEMPERATURE_THRESHOLD => {
                check_sensor(requested)?;
                u32::from(*threshold_mut(&mut { features.temperature }, requested)?)
            }
            FeatureId::ERROR_RECOVERY => {
                // A single value is requested, so the broadcast NSID is no valid name.
                subsystem
                    .active(controller.number(), admin.entry.nsid)
                    .ok_or(Subsystem::status_of_inactive(admin.entry.nsid))?;
                u32::from(features.retry_limits[admin.entry.nsid as usize - 1])
            }
            FeatureId::VOLATILE_WRITE_CACHE => u32::from(features.write_cache_enabled()),
            FeatureId::NUMBER_OF_QUEUES => number_of_queues(controller),
            FeatureId::INTERRUPT_COALESCING => features.interrupt_coalescing,
            FeatureId::INTERRUPT_VECTOR => {
                let vector = vector(controller, requested)?;
                u32::from(vector) | u32::from(features.coalescing_disabled(vector)) << 16
            }
            FeatureId::WRITE_ATOMICITY => features.write_atomicity,
            FeatureId::ASYNC_EVENTS => self.events.0,
            FeatureId::KEEP_ALIVE_TIMER => features.keep_alive_ms(),
            _ => return Err(Status::INVALID_FIELD),
        })
    }
}
