//! What to tell a virtual machine monitor so that it attaches a drive.

use clap::ValueEnum;
use serde::Serialize;

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

/// How a drive is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Attachment {
    /// For the monitor's command line; none for libvirt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) arguments: Vec<String>,
    /// For libvirt's domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) xml: Option<String>,
    /// What else the monitor needs: the daemon reads and writes the guest's memory, so that must be shared.
    pub(super) memory: String,
    /// Whether the machine keeps the drive when it is migrated, saved and restored.
    pub(super) migratable: bool,
    /// What has the monitor refuse that, if there is anything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) refuse_migration: Vec<String>,
}

/// What becomes of a virtual machine that is migrated all the same.
const STAYS: &str =
    "a machine with this drive must not be migrated, saved or restored: the guest would lose the drive";

/// An image in a format with which QEMU migrates no machine; the guest does not see it. 560 bytes, which QEMU does not
/// write to.
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

    /// For people, and to be pasted: the needs in a comment, the arguments as a shell reads them.
    pub(super) fn text(&self) -> String {
        if let Some(xml) = &self.xml {
            return format!(
                "<!-- all of this belongs directly under <domain>, not under <devices> -->\n\
                 <!-- the domain also needs {} -->\n\
                 <!-- {STAYS}; docs/monitors.md says how libvirt is made to refuse -->\n{xml}",
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

/// As a shell reads them.
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

fn libvirt_xml(socket: &str) -> String {
    let device = qemu_device(socket).replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;");
    format!(
        "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n  \
         <qemu:arg value='-device'/>\n  <qemu:arg value='{device}'/>\n</qemu:commandline>\n"
    )
}

/// The word in quotes if the shell would see anything else in it.
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
