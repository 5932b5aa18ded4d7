//! When an unchanged file is read again: disks rot under old times.

const DAY: u64 = 86_400;

/// True when the day of a path came since the last backup began: one of so many days is its own, by
/// a number that stands for the path. Both times are seconds since 1970. A last backup that is later
/// than now, by another clock, counts as yesterday's.
pub(super) fn is_due(of_path: u64, days: u64, last: u64, now: u64) -> bool {
    let Some(own) = of_path.checked_rem(days) else { return false };
    let (last, today) = (last / DAY, now / DAY);
    let gap = if last > today { 1 } else { today - last };
    let since_own = (today % days + days - own) % days;
    since_own < gap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_11_each_file_is_read_again_once_in_so_many_days_however_often_backups_run() {
        for between in [3600, 5 * 3600, DAY, 7 * DAY, 40 * DAY] {
            for of_path in 0..200 {
                let mut read = Vec::new();
                for backup in 1..2000 {
                    let (last, now) = ((backup - 1) * between, backup * between);
                    if is_due(of_path, 90, last, now) {
                        read.push(now / DAY);
                    }
                }
                let most = 90 + between.div_ceil(DAY);
                assert!(read.windows(2).all(|pair| pair[1] - pair[0] <= most), "{between}");
                assert!(read.windows(2).all(|pair| pair[1] - pair[0] + most >= 91), "{between}");
                let days = 1999 * between / DAY;
                assert!(read.len() as u64 <= days / 90 + 1 && read.len() as u64 >= days / most);
            }
        }
        // After a year without a backup all are due, and by a clock that went back today's are.
        assert!((0..90).all(|of_path| is_due(of_path, 90, DAY, 366 * DAY)));
        assert_eq!((0..90).filter(|&of_path| is_due(of_path, 90, 500 * DAY, 366 * DAY)).count(), 1);
        assert!(!is_due(5, 0, 0, 366 * DAY));
    }
}
