"""Why a run ended: the baseline at launch, the evidence at the end, the detectors of the vanished ladder, the judge."""
