//! Counters of the namespaces, queues and layers of drives.

use super::{Family, family, write_histogram};
use sluice_control::drives::{DriveCounts, LayerCounts, NamespaceCounts, QueueCounts};
use std::fmt::Write;

/// A namespace with the name of its drive.
type Namespace = (String, NamespaceCounts);

const NAMESPACES: [Family<'static, Namespace>; 4] = [
    family("sluice_namespace_commands_total", "counter", "I/O commands completed.", |(_, it)| {
        it.counts.commands
    }),
    family("sluice_namespace_errors_total", "counter", "I/O commands that failed.", |(_, it)| {
        it.counts.errors
    }),
    family("sluice_namespace_read_bytes_total", "counter", "Bytes read.", |(_, it)| it.counts.bytes_read),
    family("sluice_namespace_written_bytes_total", "counter", "Bytes written.", |(_, it)| {
        it.counts.bytes_written
    }),
];

/// A queue with the name of its drive.
type Queue = (String, QueueCounts);

const QUEUES: [Family<'static, Queue>; 4] = [
    family("sluice_queue_commands_total", "counter", "I/O commands completed.", |(_, it)| it.counts.commands),
    family("sluice_queue_errors_total", "counter", "I/O commands that failed.", |(_, it)| it.counts.errors),
    family("sluice_queue_read_bytes_total", "counter", "Bytes read.", |(_, it)| it.counts.bytes_read),
    family("sluice_queue_written_bytes_total", "counter", "Bytes written.", |(_, it)| {
        it.counts.bytes_written
    }),
];

/// A layer with the name of its drive.
type Layer = (String, LayerCounts);

const LAYERS: [Family<'static, Layer>; 3] = [
    family(
        "sluice_layer_commands_total",
        "counter",
        "Commands received, parts of divided commands too.",
        |(_, it)| it.commands,
    ),
    family("sluice_layer_read_bytes_total", "counter", "Bytes that were to be read.", |(_, it)| {
        it.bytes_read
    }),
    family("sluice_layer_written_bytes_total", "counter", "Bytes that were to be written.", |(_, it)| {
        it.bytes_written
    }),
];

/// Writes the metrics of the parts of drives.
pub(super) fn write(out: &mut String, drives: &[DriveCounts]) {
    let namespaces: Vec<Namespace> = each(drives, |drive| &drive.namespaces);
    for family in &NAMESPACES {
        family.write(out, &namespaces, |(drive, it)| format!("drive=\"{drive}\",nsid=\"{}\"", it.nsid));
    }
    const NAME: &str = "sluice_namespace_command_duration_seconds";
    let help = "Time from the fetch of an I/O command until its completion entry is written.";
    let _ = writeln!(out, "# HELP {NAME} {help}\n# TYPE {NAME} histogram");
    for (drive, namespace) in &namespaces {
        for of in namespace.operations.iter().filter(|of| of.count > 0) {
            let labels =
                format!("drive=\"{drive}\",nsid=\"{}\",operation=\"{}\"", namespace.nsid, of.operation);
            write_histogram(out, NAME, &labels, of);
        }
    }
    let queues: Vec<Queue> = each(drives, |drive| &drive.queues);
    for family in &QUEUES {
        family.write(out, &queues, |(drive, it)| {
            format!("drive=\"{drive}\",controller=\"{}\",queue=\"{}\"", it.controller, it.queue)
        });
    }
    let layers: Vec<Layer> = each(drives, |drive| &drive.layers);
    for family in &LAYERS {
        family.write(out, &layers, |(drive, it)| {
            format!("drive=\"{drive}\",nsid=\"{}\",layer=\"{}\",kind=\"{}\"", it.nsid, it.number, it.kind)
        });
    }
}

/// Returns one kind of parts of all drives, each with the name of its drive.
fn each<T: Clone>(drives: &[DriveCounts], of: impl Fn(&DriveCounts) -> &Vec<T>) -> Vec<(String, T)> {
    let parts = |drive: &DriveCounts| -> Vec<(String, T)> {
        of(drive).iter().map(|part: &T| (drive.drive.clone(), part.clone())).collect()
    };
    drives.iter().flat_map(parts).collect()
}
