//! The few numbers that stand for many measurements.

/// Measurements of one thing, sorted.
#[derive(Debug)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Takes them in any order. At least one is needed for the numbers below to be numbers.
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The smallest.
    pub(crate) fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    /// The value that `percent` of the measurements don't exceed: one that was really measured, nothing
    /// interpolated (the nearest-rank method).
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    /// All of them, ascending.
    pub(crate) fn values(&self) -> &[f64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let samples = Samples::new((1..=60).rev().map(f64::from).collect());
        assert_eq!(samples.min(), 1.0);
        assert_eq!(samples.percentile(50), 30.0);
        assert_eq!(samples.percentile(95), 57.0);
        assert_eq!(samples.percentile(100), 60.0);
        assert_eq!(samples.percentile(0), 1.0);
    }

    #[test]
    fn of_one_measurement_every_percentile_is_that_one() {
        let samples = Samples::new(vec![7.5]);
        assert_eq!((samples.min(), samples.percentile(50), samples.percentile(95)), (7.5, 7.5, 7.5));
    }

    #[test]
    fn of_none_nothing_is_a_number() {
        let samples = Samples::new(Vec::new());
        assert!(samples.min().is_nan() && samples.percentile(50).is_nan());
    }
}
