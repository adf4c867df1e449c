"""The values of share groups, and what every other package needs: offsets, errors, names, figures, settings."""
