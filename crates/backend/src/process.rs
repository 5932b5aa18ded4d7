//! Resources that this process uses, for status and benches.

use std::{fs, time::Duration};

use onefold_core::{Error, Kind, Result};
use rustix::time::{ClockId, clock_gettime};

/// Memory of this process in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Resident now (`VmRSS`). The kernel counts in batches: off by up to a few hundred KiB.
    pub resident_bytes: u64,
    /// Most that was ever resident (`VmHWM`).
    pub peak_bytes: u64,
}

/// Memory of this process.
///
/// # Errors
/// When `/proc` is not there or does not tell.
pub fn memory() -> Result<Memory> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|e| Error::from_io("cannot read /proc/self/status", e))?;
    parse(&status).ok_or_else(|| {
        Error::new(Kind::Unsupported, "/proc/self/status does not tell resident memory")
    })
}

fn parse(status: &str) -> Option<Memory> {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Memory { resident_bytes: bytes("VmRSS:")?, peak_bytes: bytes("VmHWM:")? })
}

/// Descriptors that this process wants to be allowed, if whoever started it lets it: more than it has connections.
const DESCRIPTORS: u64 = 65_536;

/// Raises the number of descriptors that this process may have, as far as whoever started it lets it, and gives it.
#[must_use]
pub fn descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let (current, maximum) = (now.current.unwrap_or(DESCRIPTORS), now.maximum);
    let wanted = DESCRIPTORS.min(maximum.unwrap_or(DESCRIPTORS));
    if current >= wanted
        || setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_err()
    {
        return current;
    }
    wanted
}

/// Processor time of all threads of this process so far, in user and kernel.
#[must_use]
pub fn cpu_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// Processor time of the calling thread so far, in user and kernel: what others do on a busy host is none of it.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_use_is_seen() {
        // Other tests of this process free memory meanwhile.
        let is_seen = || {
            let before = memory().unwrap();
            let block = std::hint::black_box(vec![1_u8; 64 << 20]);
            let after = memory().unwrap();
            assert!(after.peak_bytes >= after.resident_bytes);
            drop(block);
            after.resident_bytes >= before.resident_bytes + (60 << 20)
        };
        assert!((0..20).any(|_| is_seen()));
    }

    #[test]
    fn a_status_without_memory_is_no_panic() {
        for status in [
            "",
            "VmRSS:",
            "VmRSS: 1 kB",
            "VmRSS: x kB\nVmHWM: 1 kB",
            "VmRSS: 18446744073709551615 kB\nVmHWM: 1 kB",
        ] {
            assert_eq!(parse(status), None);
        }
    }

    #[test]
    fn processor_time_grows_with_work() {
        let before = cpu_time();
        while cpu_time() < before + Duration::from_millis(5) {
            std::hint::spin_loop();
        }
    }
}
