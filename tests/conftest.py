"""What all tests share: properties are about results, never about the time they take."""

from hypothesis import HealthCheck, settings

# What is already loaded, such as a profile for CI, is kept.
settings.register_profile(
    "kvorum", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kvorum")
