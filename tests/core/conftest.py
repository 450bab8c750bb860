"""The properties of the wire formats look at as many examples as all others."""

import hypothesis_profiles  # noqa: F401  the profiles, registered and loaded
