//! Properties of a PCI function in sysfs.

use crate::Error;
use std::path::{Path, PathBuf};

/// Returns the file of the VFIO group of a function.
///
/// # Errors
/// There is no such function, another driver has it, or no IOMMU confines it.
pub(super) fn group(address: &str) -> Result<PathBuf, Error> {
    group_below(Path::new("/sys/bus/pci/devices"), address)
}

fn group_below(devices: &Path, address: &str) -> Result<PathBuf, Error> {
    let function = devices.join(address);
    // An address is no path to somewhere else.
    if address.contains('/') || !function.is_dir() {
        return Err(Error::Setup(format!("there is no PCI function {address} here; see lspci -D")));
    }
    let named = |link: &str| {
        let target = std::fs::read_link(function.join(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    match named("driver") {
        Some(driver) if driver.starts_with("vfio") => {}
        driver => {
            let has = driver.map_or("no driver".to_owned(), |driver| format!("the driver {driver}"));
            return Err(Error::Setup(format!(
                "{address} has {has}: bind it to vfio-pci (write vfio-pci to its driver_override, unbind it, and write \
                 its address to /sys/bus/pci/drivers_probe)"
            )));
        }
    }
    let Some(group) = named("iommu_group") else {
        return Err(Error::Setup(format!(
            "no IOMMU confines {address}: turn it on in the firmware and on the kernel's command line \
             (intel_iommu=on); without one the device could reach all memory, and is refused"
        )));
    };
    // The kernel gives this name to the group of a function without an IOMMU, in no-IOMMU mode.
    let name = std::fs::read_to_string(function.join("iommu_group/name")).unwrap_or_default();
    if name.trim_end().starts_with("vfio-noiommu") {
        return Err(Error::Setup(format!(
            "{address} is in VFIO's no-IOMMU mode, in which it could reach all memory, and is refused: use an IOMMU"
        )));
    }
    Ok(Path::new("/dev/vfio").join(group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    const ADDRESS: &str = "0000:00:04.0";

    /// Creates a sysfs with one function and the files of `set_up`, and returns the group in it.
    fn look(set_up: impl FnOnce(&Path)) -> Result<PathBuf, Error> {
        let root = std::env::temp_dir().join(format!("sluice-sysfs-{}-{:p}", std::process::id(), &set_up));
        let function = root.join(ADDRESS);
        fs::create_dir_all(&function).expect("a folder");
        set_up(&function);
        let found = group_below(&root, ADDRESS);
        fs::remove_dir_all(&root).expect("our own folder");
        found
    }

    fn message_of(found: Result<PathBuf, Error>) -> String {
        found.expect_err("it cannot be used").to_string()
    }

    #[test]
    fn a_function_that_vfio_has_is_in_a_group() {
        let found = look(|function| {
            symlink("../../drivers/vfio-pci", function.join("driver")).expect("a link");
            symlink("../../../kernel/iommu_groups/7", function.join("iommu_group")).expect("a link");
        });
        assert_eq!(found.expect("all is well"), Path::new("/dev/vfio/7"));
    }

    #[test]
    fn what_is_missing_is_said() {
        assert!(message_of(group_below(Path::new("/nonexistent"), ADDRESS)).contains("lspci"));
        assert!(message_of(look(|_| ())).contains("no driver"));
        let bound = |driver: &str| {
            let driver = format!("../../drivers/{driver}");
            move |function: &Path| symlink(driver, function.join("driver")).expect("a link")
        };
        let message = message_of(look(bound("nvme")));
        assert!(message.contains("the driver nvme: bind it to vfio-pci"), "{message}");
        assert!(message_of(look(bound("vfio-pci"))).contains("no IOMMU confines"));
        let pretended = look(|function| {
            bound("vfio-pci")(function);
            fs::create_dir(function.join("7")).expect("a folder");
            fs::write(function.join("7/name"), "vfio-noiommu\n").expect("a file");
            symlink("7", function.join("iommu_group")).expect("a link");
        });
        assert!(message_of(pretended).contains("no-IOMMU mode"));
    }
}
