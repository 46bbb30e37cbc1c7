//! Arguments with which a virtual machine monitor attaches a drive.

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use sluice_spec::error::ApiError;
use std::path::Path;

/// A virtual machine monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Monitor {
    /// QEMU 10.1 or newer
    #[default]
    Qemu,
    CloudHypervisor,
    /// libvirt, through its QEMU command line extension
    Libvirt,
}

/// Configuration with which a monitor attaches a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Attachment {
    /// Arguments of the monitor's command line; none for libvirt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) arguments: Vec<String>,
    /// XML for libvirt's domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) xml: Option<String>,
    /// Further needs of the monitor: the guest's memory must be shared, because the daemon reads and writes
    /// it.
    pub(super) memory: String,
    /// Ability of the machine to keep the drive when it is migrated, saved and restored.
    pub(super) migratable: bool,
    /// Arguments with which the monitor refuses migration, if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) refuse_migration: Vec<String>,
}

/// Major and minor number of the last QEMU that aborts when a vfio-user device with MSI-X is unplugged.
pub(super) const ABORTS_UP_TO: (u64, u64) = (11, 1);

/// Warning about the migration of a virtual machine with such a drive.
const STAYS: &str =
    "a machine with this drive must not be migrated, saved or restored: the guest would lose the drive";

/// File name of an image in a format with which QEMU migrates no machine. The guest does not see the image.
/// The image has 560 bytes, and QEMU does not write to it.
const BLOCKER: &str = "stay.qcow";

impl Attachment {
    pub(super) fn new(monitor: Monitor, socket: &str) -> Self {
        match monitor {
            Monitor::Qemu => Self::qemu(socket),
            Monitor::CloudHypervisor => Self {
                arguments: vec!["--user-device".to_owned(), format!("socket={socket}")],
                xml: None,
                memory: "--memory size=SIZE,shared=on".to_owned(),
                migratable: false,
                refuse_migration: Vec::new(),
            },
            Monitor::Libvirt => Self {
                arguments: Vec::new(),
                xml: Some(libvirt_xml(socket)),
                memory: "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
                    .to_owned(),
                migratable: false,
                refuse_migration: vec!["-blockdev".to_owned(), blocker()],
            },
        }
    }

    fn qemu(socket: &str) -> Self {
        Self {
            arguments: vec!["-device".to_owned(), qemu_device(socket)],
            xml: None,
            memory: "-object memory-backend-memfd,id=mem0,size=SIZE,share=on -machine memory-backend=mem0"
                .to_owned(),
            migratable: false,
            refuse_migration: vec!["-blockdev".to_owned(), blocker()],
        }
    }

    /// Returns text to read and to paste: the needs in a comment, and the arguments in shell syntax.
    pub(super) fn text(&self) -> String {
        if let Some(xml) = &self.xml {
            return format!(
                "<!-- all of this belongs directly under <domain>, not under <devices> -->\n\
                 <!-- the domain also needs {} -->\n\
                 <!-- {STAYS}; docs/howto/attach-to-libvirt.md says how libvirt is made to refuse -->\n{xml}",
                self.memory
            );
        }
        let mut text = format!(
            "# guest memory must be shared, SIZE being as large as the guest's: {}\n# {STAYS}\n",
            self.memory
        );
        if !self.refuse_migration.is_empty() {
            text += &format!(
                "# QEMU refuses with an image of `qemu-img create -f qcow {BLOCKER} 1M`: {}\n",
                words(&self.refuse_migration)
            );
        }
        text + &words(&self.arguments) + "\n"
    }
}

/// Returns the arguments in shell syntax.
fn words(arguments: &[String]) -> String {
    let words: Vec<String> = arguments.iter().map(|argument| shell_word(argument)).collect();
    words.join(" ")
}

fn blocker() -> String {
    format!("driver=qcow,node-name=stay,file.driver=file,file.filename={BLOCKER}")
}

fn qemu_device(socket: &str) -> String {
    let path = serde_json::Value::from(socket);
    format!("{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":{path}}}}}")
}

/// Returns the identifier of a drive's socket in a machine into which it is plugged.
pub(super) fn device_id(name: &str, socket: usize) -> String {
    if socket == 1 { format!("sluice-{name}") } else { format!("sluice-{name}-{socket}") }
}

/// Returns the device for `device_add` of QEMU's monitor.
pub(super) fn hot_plugged(id: &str, socket: &Path, bus: Option<&str>) -> Result<Value, ApiError> {
    let device = serde_json::from_str(&qemu_device(&socket.display().to_string()));
    let mut device: Value = device.map_err(|error| ApiError::internal(error.to_string()))?;
    device["id"] = id.into();
    if let Some(bus) = bus {
        device["bus"] = bus.into();
    }
    Ok(device)
}

fn libvirt_xml(socket: &str) -> String {
    let device = qemu_device(socket).replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;");
    format!(
        "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n  \
         <qemu:arg value='-device'/>\n  <qemu:arg value='{device}'/>\n</qemu:commandline>\n"
    )
}

/// Returns the word, in quotes if it has a character that is special to the shell.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: &str = "/run/sluice/drives/demo/cntrl";

    #[test]
    fn a_running_qemu_gets_the_same_device_with_a_name() {
        let device = hot_plugged(&device_id("demo", 2), Path::new(SOCKET), Some("slot0")).expect("JSON");
        assert_eq!(
            device,
            serde_json::json!({ "driver": "vfio-user-pci", "id": "sluice-demo-2", "bus": "slot0",
                "socket": { "type": "unix", "path": SOCKET } })
        );
        assert_eq!(device_id("demo", 1), "sluice-demo");
    }

    #[test]
    fn qemu_gets_a_device_in_json() {
        assert_eq!(
            Attachment::new(Monitor::Qemu, SOCKET).text(),
            "# guest memory must be shared, SIZE being as large as the guest's: \
             -object memory-backend-memfd,id=mem0,size=SIZE,share=on -machine memory-backend=mem0\n\
             # a machine with this drive must not be migrated, saved or restored: the guest would lose the drive\n\
             # QEMU refuses with an image of `qemu-img create -f qcow stay.qcow 1M`: \
             -blockdev driver=qcow,node-name=stay,file.driver=file,file.filename=stay.qcow\n\
             -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\
             \"path\":\"/run/sluice/drives/demo/cntrl\"}}'\n"
        );
    }

    #[test]
    fn cloud_hypervisor_gets_a_user_device() {
        let text = Attachment::new(Monitor::CloudHypervisor, SOCKET).text();
        assert!(text.ends_with("--user-device socket=/run/sluice/drives/demo/cntrl\n"), "{text}");
        assert!(text.contains("shared=on"));
    }

    #[test]
    fn libvirt_gets_xml() {
        let text = Attachment::new(Monitor::Libvirt, "/a'b&c").text();
        assert!(text.contains("<qemu:arg value='{\"driver\":\"vfio-user-pci\""), "{text}");
        assert!(text.contains("/a&apos;b&amp;c"), "{text}");
        assert!(text.starts_with("<!-- all of this belongs directly under <domain>"), "{text}");
        for comment in text.split("<!--").skip(1) {
            let comment = comment.split("-->").next().unwrap_or_default();
            assert!(!comment.contains("--"), "XML has no comment like `{comment}`");
        }
    }

    #[test]
    fn odd_paths_survive_the_shell() {
        assert_eq!(shell_word("/a/b-c"), "/a/b-c");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
