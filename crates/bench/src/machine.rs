//! Machine of a measurement, without which the measurement means nothing.

use super::cores::Cores;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub kernel: String,
    #[serde(flatten)]
    pub cores: Cores,
    /// Whether the program has assertions, which cost time: it was built for tests, not for measurements.
    pub assertions: bool,
}

impl Machine {
    pub fn of_this(cores: Cores) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            processor: name(&info),
            processors: info.lines().filter(|line| line.starts_with("processor")).count(),
            kernel: kernel.trim().to_owned(),
            cores,
            assertions: cfg!(debug_assertions),
        }
    }

    /// Formats a line or two for people.
    pub fn text(&self) -> String {
        let mut text = format!("{} x {}, Linux {}\n", self.processors, self.processor, self.kernel);
        if self.cores.host.is_none() {
            text += "warning: reactor and host share one processor; nothing here means anything\n";
        }
        if self.assertions {
            text += "warning: this program was built with assertions; use one built with --profile dist\n";
        }
        text
    }
}

/// Returns the processor's name, as the kernel reports it.
fn name(info: &str) -> String {
    let line = info.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
