//! Findings about the machine: limits of the process, kernel, processors, devices.

use super::Finding;
use std::fs;
use std::path::Path;

/// Oldest kernel of the tests.
const OLDEST_TESTED: (u32, u32) = (6, 1);

/// Open files below which a hundred drives with a hundred interrupts each do not fit.
const OPEN_FILES: u64 = 65536;

/// Bytes of locked memory for keys.
const LOCKED: u64 = 64 << 20;

/// Features of x86 and arm64 processors in `/proc/cpuinfo`, and their use.
const X86_64: [(&str, &str); 4] = [
    ("aes", "encryption"),
    ("avx2", "encryption and parity"),
    ("pclmulqdq", "TLS"),
    ("sse4_2", "digests of NVMe/TCP"),
];
const AARCH64: [(&str, &str); 3] =
    [("aes", "encryption"), ("pmull", "TLS"), ("crc32", "digests of NVMe/TCP")];

/// Time to leave a sleep state of a processor, in microseconds, that a sleeping drive's guest notices.
const WAKE_UP_US: u64 = 200;

/// Returns the findings. `root` is the folder with `proc`, `sys` and `dev`; `process` is the daemon, if one
/// runs.
pub(super) fn examine(root: &Path, process: Option<u32>, architecture: &str) -> Vec<Finding> {
    let machine = Machine { root };
    vec![
        machine.kernel(),
        machine.io_uring(),
        machine.open_files(process),
        machine.locked_memory(process),
        machine.processor(architecture),
        machine.frequency(),
        machine.sleep_states(),
        machine.virtualization(),
        machine.vfio(),
    ]
}

struct Machine<'a> {
    root: &'a Path,
}

impl Machine<'_> {
    /// Returns a file's text without the white space around it; none if it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Returns the names in a folder, sorted.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn kernel(&self) -> Finding {
        let release = self.read("proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST_TESTED => {
                Finding::ok("kernel", format!("Linux {release}"))
            }
            _ => Finding::slower(
                "kernel",
                format!(
                    "Linux {release} is older than the oldest tested kernel, {}.{}",
                    OLDEST_TESTED.0, OLDEST_TESTED.1
                ),
                "install a newer kernel",
            ),
        }
    }

    fn io_uring(&self) -> Finding {
        let remedy = "sysctl kernel.io_uring_disabled=0";
        match self.read("proc/sys/kernel/io_uring_disabled").as_deref() {
            // Kernels before 6.6 have no such setting.
            None | Some("0") => Finding::ok("io_uring", "the kernel permits it"),
            Some("1") => Finding::missing(
                "io_uring",
                "only processes with CAP_SYS_ADMIN or of kernel.io_uring_group may use it",
                remedy,
            ),
            Some(_) => Finding::missing("io_uring", "the kernel forbids it to all processes", remedy),
        }
    }

    /// Returns the hard limit in a line of `/proc/PID/limits`; the greatest number stands for `unlimited`.
    fn limit(&self, process: Option<u32>, name: &str) -> Option<u64> {
        let process = process.map_or_else(|| "self".to_owned(), |process| process.to_string());
        let limits = self.read(&format!("proc/{process}/limits"))?;
        let values = limits.lines().find_map(|line| line.strip_prefix(name))?;
        match values.split_whitespace().nth(1)? {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        }
    }

    fn open_files(&self, process: Option<u32>) -> Finding {
        let topic = "open files";
        match self.limit(process, "Max open files") {
            Some(limit) if limit < OPEN_FILES => Finding::slower(
                topic,
                format!("the limit of {limit} is little: each drive needs up to a hundred"),
                "LimitNOFILE=524288 in the unit, or `ulimit -Hn 524288` before the start",
            ),
            Some(limit) => Finding::ok(topic, format!("the limit is {limit}")),
            None => Finding::ok(topic, "the limit cannot be read"),
        }
    }

    fn locked_memory(&self, process: Option<u32>) -> Finding {
        let topic = "locked memory";
        match self.limit(process, "Max locked memory") {
            Some(limit) if limit < LOCKED => Finding::slower(
                topic,
                format!(
                    "the limit of {} KiB is little for keys, and too little for devices of VFIO",
                    limit >> 10
                ),
                "LimitMEMLOCK=64M in the unit, or `ulimit -l 65536` before the start",
            ),
            _ => Finding::ok(topic, "the limit is high enough"),
        }
    }

    fn processor(&self, architecture: &str) -> Finding {
        let wanted: &[(&str, &str)] = match architecture {
            "x86_64" => &X86_64,
            "aarch64" => &AARCH64,
            _ => &[],
        };
        let text = self.read("proc/cpuinfo").unwrap_or_default();
        let is_list = |line: &&str| line.starts_with("flags") || line.starts_with("Features");
        let list =
            text.lines().find(is_list).and_then(|line| line.split_once(':')).map_or("", |(_, list)| list);
        let has = |name: &str| list.split_whitespace().any(|feature| feature == name);
        let absent: Vec<String> =
            wanted.iter().filter(|(name, _)| !has(name)).map(|(name, of)| format!("{name} ({of})")).collect();
        if absent.is_empty() {
            return Finding::ok("processor", "it has all instructions that make drives faster");
        }
        Finding::slower(
            "processor",
            format!("it lacks {}", absent.join(", ")),
            "in a virtual machine: pass the processor of the host through (`-cpu host`)",
        )
    }

    fn frequency(&self) -> Finding {
        let topic = "frequency";
        let of = |processor: &String| {
            self.read(&format!("sys/devices/system/cpu/{processor}/cpufreq/scaling_governor"))
        };
        let mut governors: Vec<String> = self.names("sys/devices/system/cpu").iter().filter_map(of).collect();
        governors.sort();
        governors.dedup();
        governors.retain(|governor| governor != "performance");
        match governors.is_empty() {
            true => Finding::ok(topic, "no governor of the kernel lowers it"),
            false => Finding::slower(
                topic,
                format!("the governor {} lowers it while drives are idle", governors.join(", ")),
                "cpupower frequency-set -g performance",
            ),
        }
    }

    fn sleep_states(&self) -> Finding {
        let topic = "sleep states";
        let folder = "sys/devices/system/cpu/cpu0/cpuidle";
        let latency = |state: &String| {
            let value = |name| self.read(&format!("{folder}/{state}/{name}"));
            let latency = value("latency")?.parse::<u64>().ok()?;
            (value("disable").as_deref() != Some("1")).then_some(latency)
        };
        match self.names(folder).iter().filter_map(latency).max() {
            Some(longest) if longest > WAKE_UP_US => Finding::slower(
                topic,
                format!("a processor takes up to {longest} us to wake up, and a drive that slept with it"),
                format!("cpupower idle-set -D {WAKE_UP_US}"),
            ),
            _ => Finding::ok(topic, "processors wake up quickly"),
        }
    }

    fn virtualization(&self) -> Finding {
        match self.exists("dev/kvm") {
            true => Finding::ok("virtualization", "/dev/kvm is there"),
            false => Finding::slower(
                "virtualization",
                "/dev/kvm is not there: virtual machines of this machine are emulated",
                "turn it on in the firmware, or in the host of this machine; then `modprobe kvm_intel` or `modprobe kvm_amd`",
            ),
        }
    }

    fn vfio(&self) -> Finding {
        let has_groups = !self.names("sys/kernel/iommu_groups").is_empty();
        let text = match (has_groups, self.exists("dev/vfio/vfio")) {
            (true, true) => return Finding::ok("vfio", "PCI devices of this machine can be targets"),
            (false, _) => "PCI devices of this machine cannot be targets, because there is no IOMMU",
            (true, false) => {
                "PCI devices of this machine cannot be targets, because /dev/vfio/vfio is not there"
            }
        };
        let remedy = match has_groups {
            true => "if one is to be: modprobe vfio-pci",
            false => "if one is to be: turn it on in the firmware, and start Linux with intel_iommu=on",
        };
        Finding { remedy: Some(remedy.to_owned()), ..Finding::ok("vfio", text) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    /// Makes a folder in place of the root, with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("room on the disk");
            fs::write(path, text).expect("room on the disk");
        }
        root
    }

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 524288               files
Max locked memory         8388608              unlimited            bytes
";

    fn good() -> Vec<(&'static str, &'static str)> {
        vec![
            ("proc/sys/kernel/osrelease", "6.12.9-amd64\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("proc/self/limits", LIMITS),
            ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse4_2 pclmulqdq aes avx2\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2\n"),
            ("sys/kernel/iommu_groups/0/type", "DMA\n"),
            ("dev/kvm", ""),
            ("dev/vfio/vfio", ""),
        ]
    }

    /// Examines a good machine in which one file has another text, or is absent.
    fn with(path: &str, text: Option<&str>, architecture: &str, topic: &str) -> Finding {
        let mut files = good();
        files.retain(|(other, _)| *other != path);
        files.extend(text.map(|text| (path, text)));
        let root = machine(&files);
        let found = examine(root.path(), None, architecture);
        found.into_iter().find(|finding| finding.topic == topic).expect("the topic")
    }

    #[test]
    fn a_good_machine_has_no_remedies() {
        let root = machine(&good());
        for finding in examine(root.path(), None, "x86_64") {
            assert_eq!((finding.state, &finding.remedy), (State::Ok, &None), "{finding:?}");
        }
    }

    #[test]
    fn an_empty_machine_is_no_failure() {
        let root = machine(&[]);
        let found = examine(root.path(), Some(7), "x86_64");
        assert!(found.iter().all(|finding| finding.state != State::Missing), "{found:?}");
    }

    #[test]
    fn old_kernels_are_not_tested() {
        let state = |text| with("proc/sys/kernel/osrelease", Some(text), "x86_64", "kernel").state;
        assert_eq!([state("5.19.0"), state("6.0"), state("unknown")], [State::Slower; 3]);
        assert_eq!([state("6.1.0-40-amd64"), state("10.0")], [State::Ok; 2]);
    }

    #[test]
    fn io_uring_may_be_forbidden() {
        let state = |text| with("proc/sys/kernel/io_uring_disabled", text, "x86_64", "io_uring").state;
        assert_eq!([state(Some("1")), state(Some("2"))], [State::Missing; 2]);
        assert_eq!([state(Some("0\n")), state(None)], [State::Ok; 2]);
    }

    #[test]
    fn limits_are_the_hard_ones_of_the_daemon() {
        let low = LIMITS.replace("524288", "4096").replace("unlimited", "8388608");
        let of = |topic| with("proc/self/limits", Some(&low), "x86_64", topic);
        assert_eq!([of("open files").state, of("locked memory").state], [State::Slower; 2]);
        assert!(of("open files").text.contains("4096") && of("locked memory").text.contains("8192 KiB"));
        let mut files = good();
        files.push(("proc/77/limits", &low));
        let root = machine(&files);
        let found = examine(root.path(), Some(77), "x86_64");
        assert!(found.iter().any(|finding| finding.topic == "open files" && finding.state == State::Slower));
    }

    #[test]
    fn instructions_are_those_of_the_architecture() {
        let found = with("proc/cpuinfo", Some("flags : fpu aes\n"), "x86_64", "processor");
        assert_eq!(found.state, State::Slower);
        assert!(
            found.text.contains("avx2 (encryption and parity)") && !found.text.contains("lacks aes"),
            "{found:?}"
        );
        let state = |text| with("proc/cpuinfo", Some(text), "aarch64", "processor").state;
        assert_eq!(state("Features\t: fp aes pmull crc32\n"), State::Ok);
        assert_eq!(state("Features\t: fp\n"), State::Slower);
    }

    #[test]
    fn frequencies_and_sleep_states_slow_down() {
        let of = |path: &str, text, topic| {
            with(&format!("sys/devices/system/cpu/cpu0/{path}"), Some(text), "x86_64", topic)
        };
        let found = of("cpufreq/scaling_governor", "powersave\n", "frequency");
        assert_eq!((found.state, found.text.contains("powersave")), (State::Slower, true));
        assert_eq!(of("cpuidle/state1/latency", "300\n", "sleep states").state, State::Slower);
        assert_eq!(of("cpuidle/state1/latency", "200\n", "sleep states").state, State::Ok);
        let files = [
            ("sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "900"),
            ("sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "1"),
        ];
        let root = machine(&files);
        assert_eq!(Machine { root: root.path() }.sleep_states().state, State::Ok);
    }

    #[test]
    fn devices_may_be_absent() {
        assert_eq!(with("dev/kvm", None, "x86_64", "virtualization").state, State::Slower);
        let found = with("dev/vfio/vfio", None, "x86_64", "vfio");
        assert_eq!(
            (found.state, found.remedy.as_deref()),
            (State::Ok, Some("if one is to be: modprobe vfio-pci"))
        );
        assert!(with("sys/kernel/iommu_groups/0/type", None, "x86_64", "vfio").text.contains("no IOMMU"));
    }
}
