"""An HTTP service: any agent gets an unlimited conversation by changing one URL."""
