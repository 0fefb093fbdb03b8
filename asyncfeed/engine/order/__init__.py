"""In which order results are sent: decided here, without IO and without a loop."""
