//! Counters in the format of Prometheus (text format 0.0.4).

mod parts;
mod shared;

use sluice_control::drives::{
    CacheView, DeviceView, DriveCounts, DriveLatency, DriveState, DriveView, Drives, FunctionView, JobState,
    JobView, LatencyView, LimitsView, ReactorCounters, SharedView,
};
use sluice_functions::{Metric, service};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The media type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Time limit for the jobs of a drive; after it, the last known ones are returned.
const JOBS_LIMIT: Duration = Duration::from_millis(40);

/// A family of metrics: a name, a help text, and a sample for each labelled thing.
struct Family<'a, T> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    /// Value of a sample; nanoseconds where the name ends in seconds.
    value: fn(&T) -> u64,
}

const DRIVES: [Family<'static, DriveView>; 11] = [
    family("sluice_drive_open", "gauge", "1 if the drive is open, 0 if it failed.", |d| {
        u64::from(d.state != DriveState::Failed)
    }),
    family("sluice_drive_connected", "gauge", "1 if a client is there.", |d| {
        u64::from(d.state == DriveState::Connected)
    }),
    family("sluice_drive_commands_in_flight", "gauge", "Commands in flight.", |d| u64::from(d.in_flight)),
    family(
        "sluice_drive_stalls_total",
        "counter",
        "Times it was seen to stop its reactor in a page fault.",
        |d| d.stalls,
    ),
    family("sluice_drive_remote_queues", "gauge", "Queue groups on other reactors.", |d| {
        d.remote_queues.len() as u64
    }),
    family("sluice_drive_commands_total", "counter", "I/O commands completed.", |d| d.counters.commands),
    family("sluice_drive_errors_total", "counter", "I/O commands that failed.", |d| d.counters.errors),
    family("sluice_drive_classified", "gauge", "1 if the drive has a classifier.", |d| {
        u64::from(d.classifier.is_some())
    }),
    family(
        "sluice_drive_classifier_errors_total",
        "counter",
        "Steps of commands that a classifier failed.",
        |d| d.counters.classifier_errors,
    ),
    family("sluice_drive_read_bytes_total", "counter", "Bytes read.", |d| d.counters.bytes_read),
    family("sluice_drive_written_bytes_total", "counter", "Bytes written.", |d| d.counters.bytes_written),
];

/// A device with the name of its drive.
type Device = (String, DeviceView);

const DEVICES: [Family<'static, Device>; 11] = [
    family("sluice_device_connected", "gauge", "1 if the NVMe device is there.", |(_, d)| d.connected.into()),
    family("sluice_device_commands_in_flight", "gauge", "Commands of a path over a network.", |(_, d)| {
        d.under_way.unwrap_or(0)
    }),
    family("sluice_device_sent_total", "counter", "Commands sent to the device.", |(_, d)| d.sent),
    family("sluice_device_completed_total", "counter", "Commands that it has completed.", |(_, d)| {
        d.completed
    }),
    family("sluice_device_copied_total", "counter", "Commands whose data was copied.", |(_, d)| d.copied),
    family("sluice_device_losses_total", "counter", "Times that it was lost.", |(_, d)| d.losses),
    family("sluice_device_interrupted_total", "counter", "Commands that it had then.", |(_, d)| {
        d.interrupted
    }),
    family("sluice_device_strays_total", "counter", "Completions of no command.", |(_, d)| d.strays),
    family("sluice_device_events_total", "counter", "Events that it reported by itself.", |(_, d)| d.events),
    family("sluice_device_bytes_total", "counter", "Bytes of data moved over a network.", |(_, d)| {
        d.bytes.unwrap_or(0)
    }),
    family("sluice_device_copied_bytes_total", "counter", "Those of them that were copied.", |(_, d)| {
        d.bytes_copied.unwrap_or(0)
    }),
];

const REACTORS: [Family<'static, ReactorCounters>; 11] = [
    family("sluice_reactor_turns_total", "counter", "Turns of the loop.", |r| r.turns),
    family("sluice_reactor_busy_turns_total", "counter", "Turns that found work.", |r| r.busy_turns),
    family("sluice_reactor_work_total", "counter", "Commands, doorbells and messages.", |r| r.commands),
    family("sluice_reactor_spurious_polls_total", "counter", "Looks that found nothing.", |r| {
        r.spurious_polls
    }),
    family("sluice_reactor_sleeps_total", "counter", "Times the thread went to sleep.", |r| r.sleeps),
    family("sluice_reactor_overdue_total", "counter", "Times a drive was woken in vain for long.", |r| {
        r.overdue
    }),
    family("sluice_reactor_syscalls_total", "counter", "Entries into the kernel.", |r| r.syscalls),
    family(
        "sluice_reactor_vain_receives_total",
        "counter",
        "Of these, receives that were tried in vain.",
        |r| r.vain_receives,
    ),
    family("sluice_reactor_busy_seconds_total", "counter", "Seconds of turns that found work.", |r| {
        r.busy_ns
    }),
    family("sluice_reactor_spin_seconds_total", "counter", "Seconds of turns that found nothing.", |r| {
        r.spin_ns
    }),
    family("sluice_reactor_sleep_seconds_total", "counter", "Seconds asleep.", |r| r.sleep_ns),
];

const JOBS: [Family<'static, JobView>; 4] = [
    family("sluice_job_running", "gauge", "1 if the job goes on, 0 if it is paused or over.", |job| {
        u64::from(job.state == JobState::Running)
    }),
    family("sluice_job_done_bytes", "gauge", "Bytes of the job's run that are done.", |job| job.done),
    family("sluice_job_total_bytes", "gauge", "Bytes of the job's run.", |job| job.total),
    family("sluice_job_bytes_per_second", "gauge", "Rate of the job now.", |job| job.bytes_s),
];

/// A function with limits, with the name of its drive.
type Limits = (String, LimitsView);

const LIMITS: [Family<'static, Limits>; 2] = [
    family("sluice_qos_waiting", "gauge", "Commands that wait for a limit.", |(_, it)| it.waiting),
    family("sluice_qos_waited_total", "counter", "Commands that have waited for a limit.", |(_, it)| {
        it.waited
    }),
];

/// A cache with the name of its drive.
type Cache = (String, CacheView);

const CACHES: [Family<'static, Cache>; 4] = [
    family("sluice_cache_hits_total", "counter", "Reads that were served from the cache.", |(_, it)| it.hits),
    family("sluice_cache_misses_total", "counter", "Reads that have filled the cache.", |(_, it)| it.misses),
    family("sluice_cache_bypassed_total", "counter", "Reads that went past the cache.", |(_, it)| {
        it.bypassed
    }),
    family("sluice_cache_writes_total", "counter", "Writes that have filled the cache, too.", |(_, it)| {
        it.writes
    }),
];

const fn family<'a, T>(name: &'a str, kind: &'a str, help: &'a str, value: fn(&T) -> u64) -> Family<'a, T> {
    Family { name, kind, help, value }
}

/// Everything that has metrics, as it is now.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) drives: Vec<DriveView>,
    pub(super) latency: Vec<DriveLatency>,
    pub(super) reactors: Vec<ReactorCounters>,
    pub(super) functions: Vec<(String, FunctionView)>,
    pub(super) jobs: Vec<JobView>,
    pub(super) limits: Vec<Limits>,
    pub(super) caches: Vec<Cache>,
    pub(super) parts: Vec<DriveCounts>,
    pub(super) shared: Vec<SharedView>,
}

impl Snapshot {
    /// Takes a snapshot. Waits for functions and reactors, each for a limited time.
    pub(super) fn take(drives: &Drives) -> Self {
        let functions = drives.function_metrics();
        let jobs = drives.jobs(JOBS_LIMIT);
        let (latency, reactors) = (drives.latency(), drives.reactors());
        let (limits, caches) = (drives.all_limits(), drives.caches());
        let parts = drives.counts();
        // An object that does not answer has no metrics.
        let shared = drives.shared().unwrap_or_default();
        Self { drives: drives.list(), latency, reactors, functions, jobs, limits, caches, parts, shared }
    }
}

pub(super) fn text(of: &Snapshot) -> String {
    let Snapshot { drives, latency, reactors, functions, jobs, limits, caches, parts, shared } = of;
    let mut out = String::new();
    // Names of drives need no escaping: see check_name.
    DRIVES
        .iter()
        .for_each(|family| family.write(&mut out, drives, |drive| format!("drive=\"{}\"", drive.name)));
    write_latency(&mut out, latency);
    parts::write(&mut out, parts);
    let devices = drives
        .iter()
        .flat_map(|drive| drive.devices.iter().map(|device| (drive.name.clone(), device.clone())));
    let devices: Vec<Device> = devices.collect();
    DEVICES.iter().for_each(|family| {
        family.write(&mut out, &devices, |(drive, device)| {
            let DeviceView { nsid, namespace, first_block, .. } = device;
            // A place may be any path.
            let place = escaped(&device.device);
            format!(
                "drive=\"{drive}\",nsid=\"{nsid}\",device=\"{place}\",namespace=\"{namespace}\",\
                 first_block=\"{first_block}\""
            )
        });
    });
    REACTORS.iter().for_each(|family| {
        family.write(&mut out, reactors, |counters| format!("reactor=\"{}\"", counters.reactor));
    });
    write_recalls(&mut out, drives);
    write_functions(&mut out, functions);
    let of_layer =
        |drive: &str, nsid, number| format!("drive=\"{drive}\",nsid=\"{nsid}\",number=\"{number}\"");
    LIMITS.iter().for_each(|family| {
        family.write(&mut out, limits, |(drive, it)| of_layer(drive, it.nsid, it.number));
    });
    CACHES.iter().for_each(|family| {
        family.write(&mut out, caches, |(drive, it)| of_layer(drive, it.nsid, it.number));
    });
    JOBS.iter().for_each(|family| {
        family.write(&mut out, jobs, |job| {
            let JobView { id, drive, nsid, job: name, .. } = job;
            format!("job=\"{id}\",drive=\"{drive}\",nsid=\"{nsid}\",name=\"{name}\"")
        });
    });
    shared::write(&mut out, shared);
    out
}

/// Escapes the value of a label as the format requires.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Binary logarithms of the first and the last bound of a histogram in nanoseconds: 1 us and 17 s.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;

/// Writes the histograms of the drives' commands. The bounds are powers of two, of which each is a bound of the finer
/// buckets, too.
fn write_latency(out: &mut String, drives: &[DriveLatency]) {
    const NAME: &str = "sluice_drive_command_duration_seconds";
    let help = "Time from the fetch of an I/O command until its completion entry is written.";
    let _ = writeln!(out, "# HELP {NAME} {help}\n# TYPE {NAME} histogram");
    for (drive, operation) in
        drives.iter().flat_map(|drive| drive.operations.iter().map(move |operation| (drive, operation)))
    {
        let labels = format!("drive=\"{}\",operation=\"{}\"", drive.drive, operation.operation);
        write_histogram(out, NAME, &labels, operation);
    }
}

/// Writes one histogram of a family.
fn write_histogram(out: &mut String, name: &str, labels: &str, of: &LatencyView) {
    let (mut buckets, mut below) = (of.buckets.iter().peekable(), 0);
    for bound_ns in BOUNDS.map(|bits| 1_u64 << bits) {
        while let Some(bucket) = buckets.next_if(|bucket| bucket.below_ns <= bound_ns) {
            below += bucket.count;
        }
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{}\"}} {below}", seconds(bound_ns));
    }
    let (count, sum) = (of.count, seconds(of.sum_ns));
    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}");
}

/// Returns nanoseconds as seconds, without loss.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Writes the causes for which queues on other reactors were recalled.
fn write_recalls(out: &mut String, drives: &[DriveView]) {
    const NAME: &str = "sluice_drive_queue_recalls_total";
    let help = "Times that queues on other reactors were recalled, by the cause.";
    let _ = writeln!(out, "# HELP {NAME} {help}\n# TYPE {NAME} counter");
    for (drive, recall) in
        drives.iter().flat_map(|drive| drive.queue_recalls.iter().map(move |recall| (drive, recall)))
    {
        let _ =
            writeln!(out, "{NAME}{{drive=\"{}\",cause=\"{}\"}} {}", drive.name, recall.cause, recall.times);
    }
}

/// Writes the metrics of functions. The functions chose the names, which were checked. Metrics of Sluice's own
/// functions have the description of the registry.
fn write_functions(out: &mut String, functions: &[(String, FunctionView)]) {
    let mut samples: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut known: BTreeMap<&str, &Metric> = BTreeMap::new();
    for (drive, function) in functions {
        let metrics = service(&function.function).map_or(&[][..], |service| service.metrics);
        known.extend(metrics.iter().map(|metric| (metric.name, metric)));
        for (name, value) in &function.metrics {
            let labels = format!("drive=\"{drive}\",number=\"{}\"", function.number);
            let sample = format!("sluice_function_{name}{{{labels}}} {value}");
            samples.entry(name).or_default().push(sample);
        }
    }
    for (name, samples) in samples {
        let kind = known.get(name).map_or("untyped", |metric| metric.kind());
        if let Some(metric) = known.get(name) {
            let _ = writeln!(out, "# HELP sluice_function_{name} {}", metric.about);
        }
        let _ = writeln!(out, "# TYPE sluice_function_{name} {kind}\n{}", samples.join("\n"));
    }
}

impl<T> Family<'_, T> {
    fn write(&self, out: &mut String, things: &[T], label: impl Fn(&T) -> String) {
        let Self { name, kind, help, value } = self;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for thing in things {
            let (label, value) = (label(thing), value(thing));
            let _ = match name.ends_with("_seconds_total") {
                true => writeln!(out, "{name}{{{label}}} {}", seconds(value)),
                false => writeln!(out, "{name}{{{label}}} {value}"),
            };
        }
    }
}
